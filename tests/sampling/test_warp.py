from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import TargetFailed
from outrider.sampling import warp
from outrider.types import SamplingParams


def dense_probs(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    return warp(logits, params).dense(logits.size)


def reference(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The same distribution, by sorting: temperature, min-p, top-k, top-p, in this order."""
    scores = logits / params.temperature
    probs = np.exp(scores - scores.max())
    probs /= probs.sum()
    order = sorted(range(len(probs)), key=lambda i: (-scores[i], i))
    kept = [i for i in order if scores[i] >= scores.max() + np.log(max(params.min_p, 1e-300))]
    if params.top_k:
        kept = kept[: params.top_k]
    if params.top_p < 1:
        mass, nucleus = 0.0, []
        total = sum(probs[i] for i in kept)
        for i in kept:
            nucleus.append(i)
            mass += probs[i]
            if mass >= params.top_p * total:
                break
        kept = nucleus
    result = np.zeros_like(probs)
    result[kept] = probs[kept]
    return result / result.sum()


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1, 3, 20, 700, 5000]),
    levels=st.sampled_from([2, 5, 1000]),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 50, 10_000]),
    top_p=st.sampled_from([0.0503, 0.5007, 0.9011, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5]),
)
@settings(max_examples=300, deadline=None)
def test_warp_equals_the_distribution_found_by_sorting(
    seed, size, levels, temperature, top_k, top_p, min_p
) -> None:
    # Few levels make many ties; no top_p falls on the sum of a few equal weights, where rounding
    # would decide.
    logits = np.random.default_rng(seed).integers(levels, size=size) * (6.0 / levels)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    np.testing.assert_allclose(dense_probs(logits, params), reference(logits, params), atol=1e-12)


@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(top_p=0.9999),
        SamplingParams(top_k=50),
        SamplingParams(top_k=3000, top_p=0.5),
        SamplingParams(temperature=1.3, min_p=0.05),
    ],
    ids=str,
)
def test_a_large_float32_row_keeps_the_same_tokens_as_in_float64(params, scale) -> None:
    logits = (scale * np.random.default_rng(3).standard_normal(20_000)).astype(np.float32)
    found = dense_probs(logits, params)
    expected = reference(logits.astype(np.float64), params)
    # Where rounding of the total decides, as among 20,000 equals, one token may be in or out.
    assert np.count_nonzero((found > 0) != (expected > 0)) <= 1
    np.testing.assert_allclose(found.sum(), 1.0, rtol=1e-6)
    both = (found > 0) & (expected > 0)
    np.testing.assert_allclose(found[both], expected[both], rtol=1e-3)


def test_probabilities_can_be_looked_up_without_going_through_the_row() -> None:
    logits = np.random.default_rng(4).standard_normal(50)
    ids = np.array([0, 7, 8, 49])
    for params in (SamplingParams(), SamplingParams(top_k=20), SamplingParams(temperature=0.0)):
        support = warp(logits, params)
        np.testing.assert_allclose(support.probs_at(ids), support.dense(50)[ids], atol=1e-15)


def test_the_head_of_a_distribution_is_its_likeliest_tokens() -> None:
    logits = np.array([0.0, 3.0, 1.0, 3.0, 2.0])
    head = warp(logits, SamplingParams()).head(3)
    assert head.ids.tolist() == [1, 3, 4]
    assert warp(logits, SamplingParams()).head(9).size == 5


def test_top_k_keeps_the_lowest_ids_among_ties() -> None:
    support = warp(np.array([1.0, 5.0, 5.0, 5.0]), SamplingParams(top_k=2))
    assert support.token_ids.tolist() == [1, 2]


def test_top_p_keeps_the_lowest_ids_among_ties() -> None:
    support = warp(np.zeros(100), SamplingParams(top_p=0.03))
    assert support.token_ids.tolist() == [0, 1, 2]


def test_top_p_keeps_at_least_one_token() -> None:
    assert warp(np.array([0.0, 9.0]), SamplingParams(top_p=1e-9)).token_ids.tolist() == [1]


def test_excluded_tokens_have_probability_zero() -> None:
    probs = dense_probs(np.array([0.0, -np.inf, 0.0]), SamplingParams())
    assert probs.tolist() == [0.5, 0.0, 0.5]


def test_a_huge_temperature_is_nearly_uniform_and_a_tiny_one_nearly_greedy() -> None:
    logits = np.array([0.0, 1.0])
    assert dense_probs(logits, SamplingParams(temperature=100.0))[0] == pytest.approx(0.5, abs=0.01)
    assert dense_probs(logits, SamplingParams(temperature=1e-6)).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("temperature", [1e-300, 1e-308, 5e-324])
def test_the_smallest_temperatures_are_greedy_and_overflow_nothing(temperature: float) -> None:
    logits = np.array([3.0, 900.0, 1e30, -1e30])
    probs = dense_probs(logits, SamplingParams(temperature=temperature))
    assert probs.tolist() == [0.0, 0.0, 1.0, 0.0]


def test_temperature_zero_is_the_argmax_with_the_lowest_id() -> None:
    assert dense_probs(np.array([0.0, 2.0, 2.0]), SamplingParams(temperature=0.0)).tolist() == [
        0,
        1,
        0,
    ]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_refused(value: float) -> None:
    with pytest.raises(TargetFailed, match="best logit"):
        warp(np.array([0.0, value]), SamplingParams())


def test_a_row_that_excludes_everything_is_refused() -> None:
    with pytest.raises(TargetFailed, match="best logit"):
        warp(np.full(3, -np.inf), SamplingParams())
