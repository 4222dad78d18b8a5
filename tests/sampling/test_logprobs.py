from __future__ import annotations

import math

import numpy as np
import pytest

from outrider.sampling import History, TokenSampler
from outrider.types import LogprobsMode, SamplingParams

LOGITS = np.log([0.5, 0.25, 0.15, 0.1])
BEHIND = History((0,), (1,))


def told(token_id: int, **params: object):
    return TokenSampler(SamplingParams(**params), 0).logprobs(LOGITS, BEHIND, token_id)  # type: ignore[arg-type]


def test_raw_logprobs_are_the_models_own_whatever_is_sampled_from() -> None:
    found = told(2, logprobs=2, temperature=0.3, top_k=1, presence_penalty=2.0)
    assert found.logprob == pytest.approx(math.log(0.15))
    assert [token for token, _ in found.top] == [0, 1]
    assert [value for _, value in found.top] == pytest.approx([math.log(0.5), math.log(0.25)])


def test_processed_logprobs_are_those_of_the_distribution_that_is_sampled() -> None:
    mode = LogprobsMode.PROCESSED
    found = told(0, logprobs=4, logprobs_mode=mode, top_k=2, logit_bias={1: math.log(2)})
    assert found.logprob == pytest.approx(math.log(0.5))
    assert dict(found.top) == pytest.approx({0: math.log(0.5), 1: math.log(0.5)})


def test_greedy_processed_logprobs_are_certain() -> None:
    found = told(0, logprobs=1, logprobs_mode=LogprobsMode.PROCESSED, temperature=0.0)
    assert (found.logprob, found.top) == (0.0, ((0, 0.0),))


def test_a_token_outside_the_processed_distribution_has_logprob_minus_infinity() -> None:
    found = told(3, logprobs=0, logprobs_mode=LogprobsMode.PROCESSED, top_k=1)
    assert found.logprob == -math.inf


def test_zero_top_logprobs_tell_of_the_token_alone() -> None:
    assert told(1, logprobs=0).top == ()


def test_equal_logprobs_are_ordered_by_id() -> None:
    found = TokenSampler(SamplingParams(logprobs=3), 0).logprobs(np.zeros(9), BEHIND, 8)
    assert [token for token, _ in found.top] == [0, 1, 2]


def test_excluded_tokens_are_never_among_the_likeliest() -> None:
    logits = np.array([0.0, -np.inf, 0.0])
    found = TokenSampler(SamplingParams(logprobs=3), 0).logprobs(logits, BEHIND, 0)
    assert [token for token, _ in found.top] == [0, 2]


def test_a_large_float32_row_gives_the_logprobs_of_float64() -> None:
    logits = np.random.default_rng(0).standard_normal(50_000)
    sampler = TokenSampler(SamplingParams(logprobs=5), 0)
    one = sampler.logprobs(logits.astype(np.float32), BEHIND, 7)
    two = sampler.logprobs(logits, BEHIND, 7)
    assert one.logprob == pytest.approx(two.logprob, abs=1e-5)
    assert [token for token, _ in one.top] == [token for token, _ in two.top]
