from __future__ import annotations

import math
from dataclasses import replace

import pytest

from outrider.errors import RequestError
from outrider.sampling import validate
from outrider.types import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -0.1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("top_k", -1),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("seed", 2**64),
        ("seed", 10**40),
        ("stop_token_ids", frozenset({10})),
        ("stop_token_ids", frozenset({-1})),
    ],
)
def test_a_meaningless_parameter_is_refused_by_name_and_value(field: str, value) -> None:
    with pytest.raises(RequestError) as caught:
        validate(replace(SamplingParams(), **{field: value}), vocab_size=10)
    assert caught.value.param == field
    shown = next(iter(value)) if isinstance(value, frozenset) else value
    shown = "over 30 digits" if value == 10**40 else shown
    assert str(shown) in str(caught.value)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0, top_p=1.0, min_p=1.0, top_k=100, seed=-1),
        SamplingParams(stop_token_ids=frozenset({0, 9}), max_tokens=1, seed=2**64 - 1),
    ],
)
def test_meaningful_parameters_pass(params: SamplingParams) -> None:
    validate(params, vocab_size=10)


def test_very_many_stop_tokens_are_refused_by_number() -> None:
    params = SamplingParams(stop_token_ids=frozenset(range(2000)))
    with pytest.raises(RequestError, match="has 2000 entries"):
        validate(params, vocab_size=5000)
