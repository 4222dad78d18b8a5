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
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-300),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", 10.1),
        ("repetition_penalty", math.nan),
        ("presence_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("presence_penalty", math.inf),
        ("frequency_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("frequency_penalty", math.nan),
        ("min_tokens", -1),
        ("logprobs", -1),
        ("allowed_token_ids", frozenset({10})),
        ("allowed_token_ids", frozenset({3, -2})),
    ],
)
def test_a_meaningless_parameter_is_refused_by_name_and_value(field: str, value) -> None:
    with pytest.raises(RequestError) as caught:
        validate(replace(SamplingParams(), **{field: value}), vocab_size=10)
    assert caught.value.param == field
    shown = (
        next(each for each in value if not 0 <= each < 10)
        if isinstance(value, frozenset)
        else value
    )
    shown = "over 30 digits" if value == 10**40 else shown
    assert str(shown) in str(caught.value)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0, top_p=1.0, min_p=1.0, top_k=100, seed=-1),
        SamplingParams(stop_token_ids=frozenset({0, 9}), max_tokens=1, seed=2**64 - 1),
        SamplingParams(repetition_penalty=10.0, presence_penalty=-2.0, frequency_penalty=2.0),
        SamplingParams(repetition_penalty=0.01, min_tokens=4, max_tokens=4, logprobs=0),
        SamplingParams(logit_bias={0: -100.0, 9: 100.0}, allowed_token_ids=frozenset({0, 9})),
        SamplingParams(bad_words=((0,), (9, 0)), logprobs=20),
        SamplingParams(allowed_token_ids=frozenset(range(10))),
    ],
)
def test_meaningful_parameters_pass(params: SamplingParams) -> None:
    validate(params, vocab_size=10)


def test_very_many_stop_tokens_are_refused_by_number() -> None:
    params = SamplingParams(stop_token_ids=frozenset(range(2000)))
    with pytest.raises(RequestError, match="has 2000 entries"):
        validate(params, vocab_size=5000)


@pytest.mark.parametrize("bias", [math.nan, math.inf, -math.inf, 100.5, -101.0])
def test_a_bias_without_meaning_is_refused_with_its_token(bias: float) -> None:
    with pytest.raises(RequestError, match=rf"logit_bias\[7\] is {bias};") as caught:
        validate(SamplingParams(logit_bias={3: 1.0, 7: bias}), vocab_size=10)
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize("token_id", [-1, 10])
def test_a_bias_for_an_id_outside_of_the_vocabulary_is_refused(token_id: int) -> None:
    with pytest.raises(RequestError, match=rf"logit_bias has {token_id}; .* 0\.\.9") as caught:
        validate(SamplingParams(logit_bias={3: 1.0, token_id: 1.0}), vocab_size=10)
    assert caught.value.param == "logit_bias"


def test_very_many_biases_are_refused_by_number() -> None:
    params = SamplingParams(logit_bias=dict.fromkeys(range(1025), 1.0))
    with pytest.raises(RequestError, match="logit_bias has 1025 entries; at most 1024"):
        validate(params, vocab_size=5000)


@pytest.mark.parametrize("token_id", [-1, 10])
def test_a_bad_word_outside_of_the_vocabulary_is_refused(token_id: int) -> None:
    with pytest.raises(RequestError, match=f"bad_words has {token_id};") as caught:
        validate(SamplingParams(bad_words=((1,), (2, token_id))), vocab_size=10)
    assert caught.value.param == "bad_words"


def test_a_bad_word_without_tokens_is_refused_since_every_output_holds_it() -> None:
    with pytest.raises(RequestError, match="without tokens") as caught:
        validate(SamplingParams(bad_words=((1,), ())), vocab_size=10)
    assert caught.value.param == "bad_words"


def test_very_many_bad_words_are_refused_by_number() -> None:
    with pytest.raises(RequestError, match="bad_words has 1025 entries"):
        validate(SamplingParams(bad_words=((1,),) * 1025), vocab_size=10)


def test_an_empty_set_of_allowed_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="allows nothing") as caught:
        validate(SamplingParams(allowed_token_ids=frozenset()), vocab_size=10)
    assert caught.value.param == "allowed_token_ids"


def test_more_tokens_at_least_than_at_most_are_refused() -> None:
    with pytest.raises(RequestError, match="min_tokens is 6, above the 5 of max_tokens") as caught:
        validate(SamplingParams(min_tokens=6, max_tokens=5), vocab_size=10)
    assert caught.value.param == "min_tokens"


def test_bad_words_of_very_many_tokens_are_refused_by_number() -> None:
    params = SamplingParams(bad_words=tuple((0,) * 100 for _ in range(100)))
    with pytest.raises(RequestError, match="have 10000 tokens together") as caught:
        validate(params, vocab_size=5)
    assert caught.value.param == "bad_words"
