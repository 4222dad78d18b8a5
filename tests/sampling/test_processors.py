"""Processors against a plain reference, token by token, and their stated order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import RequestError
from outrider.sampling import History, Processors
from outrider.types import SamplingParams

V = 6
ENDS = frozenset({4, 5})


def reference(
    logits: np.ndarray,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    forbidden: Sequence[int] = (),
) -> np.ndarray:
    """What is done to the logit of each token, in words of one syllable."""
    row = []
    for token, given_logit in enumerate(logits):
        logit = float(given_logit)
        banned = token in forbidden
        banned |= params.allowed_token_ids is not None and token not in params.allowed_token_ids
        for word in params.bad_words:
            written = (*output, token)
            banned |= tuple(written[len(written) - len(word) :]) == tuple(word)
        logit += params.logit_bias.get(token, 0.0)
        banned |= token in ENDS and len(output) < params.min_tokens
        if token in (*prompt, *output):
            repetition = params.repetition_penalty
            logit = logit / repetition if logit > 0 else logit * repetition
        count = list(output).count(token)
        logit -= params.frequency_penalty * count
        logit -= params.presence_penalty * (count > 0)
        row.append(-np.inf if banned else logit)
    return np.array(row)


class Forbids:
    """A grammar that forbids the token it saw last."""

    def __init__(self) -> None:
        self._output: list[int] = []

    def allowed(self) -> np.ndarray:
        return ~np.isin(np.arange(V), self._output[-1:])

    def accept(self, token_id: int) -> None:
        self._output.append(token_id)

    def rollback(self, count: int) -> None:
        del self._output[-count:]


tokens = st.integers(0, V - 1)
penalties = st.sampled_from([-1.5, 0.0, 0.5, 2.0])


@given(
    seed=st.integers(0, 10_000),
    prompt=st.lists(tokens, max_size=4),
    output=st.lists(tokens, max_size=6),
    repetition=st.sampled_from([0.5, 1.0, 1.3]),
    presence=penalties,
    frequency=penalties,
    bias=st.dictionaries(tokens, st.sampled_from([-100.0, -1.0, 3.0]), max_size=3),
    bad_words=st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
    allowed=st.none() | st.sets(tokens, min_size=3).map(frozenset),
    min_tokens=st.integers(0, 6),
    with_grammar=st.booleans(),
)
def test_every_logit_is_what_the_definition_says(
    seed, prompt, output, repetition, presence, frequency, bias, bad_words, allowed, min_tokens,
    with_grammar,
) -> None:  # fmt: skip
    params = SamplingParams(
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
        bad_words=bad_words,
        allowed_token_ids=allowed,
        min_tokens=min_tokens,
    )
    logits = np.random.default_rng(seed).standard_normal(V)
    given_logits = logits.copy()
    history = History(prompt, output, mask=Forbids() if with_grammar else None)
    expected = reference(logits, params, prompt, output, output[-1:] if with_grammar else ())
    processors = Processors(params, ENDS)
    if np.isneginf(expected).all():
        with pytest.raises(RequestError, match="no token is left"):
            processors.apply(logits, history)
        return
    np.testing.assert_allclose(processors.apply(logits, history), expected, atol=1e-12)
    assert (logits == given_logits).all()


def test_a_bad_word_is_stopped_at_its_last_token_and_only_there() -> None:
    processors = Processors(SamplingParams(bad_words=((1, 2, 3),)))
    row = np.zeros(V)
    assert np.isneginf(processors.apply(row, History((9,), (0, 1, 2)))[3])
    assert np.isfinite(processors.apply(row, History((9,), (0, 2, 2)))).all()
    assert np.isfinite(processors.apply(row, History((1, 2), ()))).all()  # the prompt is no output


def test_a_row_with_nothing_to_do_is_not_copied() -> None:
    logits = np.zeros(V)
    assert Processors(SamplingParams(), ENDS).apply(logits, History((1,), (2,))) is logits


def test_a_float32_row_stays_float32() -> None:
    row = np.ones(V, dtype=np.float32)
    params = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.5, logit_bias={1: 2.0})
    assert Processors(params).apply(row, History((1,), (2,))).dtype == np.float32


def test_min_tokens_holds_the_end_back_and_then_no_longer() -> None:
    processors = Processors(SamplingParams(min_tokens=2), ENDS)
    row = np.zeros(V)
    assert np.isneginf(processors.apply(row, History((1,), (2,)))[[4, 5]]).all()
    assert processors.apply(row, History((1,), (2, 3))) is row


def test_min_tokens_without_tokens_that_end_does_nothing() -> None:
    row = np.zeros(V)
    assert Processors(SamplingParams(min_tokens=2)).apply(row, History((1,))) is row


def test_a_bias_on_an_excluded_token_does_not_bring_it_back() -> None:
    params = SamplingParams(allowed_token_ids=frozenset({1, 2}), logit_bias={3: 100.0})
    assert np.isneginf(Processors(params).apply(np.zeros(V), History((1,)))[3])


def test_penalties_act_on_biased_logits() -> None:
    params = SamplingParams(logit_bias={1: 4.0}, repetition_penalty=2.0)
    row = Processors(params).apply(np.full(V, -1.0), History((1,)))
    assert row[1] == (4.0 - 1.0) / 2.0


def test_constraints_that_leave_no_token_are_refused_by_name() -> None:
    params = SamplingParams(allowed_token_ids=frozenset({4}), min_tokens=1)
    with pytest.raises(RequestError, match="no token is left at output position 0") as caught:
        Processors(params, ENDS).apply(np.zeros(V), History((1,)))
    assert caught.value.param == "allowed_token_ids"
    banned = SamplingParams(bad_words=tuple((token,) for token in range(V)))
    with pytest.raises(RequestError, match="loosen one") as caught:
        Processors(banned).apply(np.zeros(V), History((1,)))
    assert caught.value.param == "bad_words"
