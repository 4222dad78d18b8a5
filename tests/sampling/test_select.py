from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.sampling.select import BLOCK, block_maxima, nucleus, top_k


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 7])
def test_block_maxima_are_the_largest_of_each_block(size: int) -> None:
    values = np.random.default_rng(size).standard_normal(size)
    expected = [values[start : start + BLOCK].max() for start in range(0, size, BLOCK)]
    assert block_maxima(values).tolist() == expected


@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([5, 300, 8 * BLOCK, 9 * BLOCK + 3, 20_000]),
    k=st.sampled_from([1, 3, 4, 40, 5000]),
    levels=st.sampled_from([2, 50, 10**9]),
)
@settings(max_examples=150, deadline=None)
def test_top_k_is_the_head_of_a_stable_sort(seed, size, k, levels) -> None:
    values = np.random.default_rng(seed).integers(levels, size=size).astype(np.float64)
    expected = np.sort(np.argsort(-values, kind="stable")[:k])
    assert top_k(values, k, block_maxima(values)).tolist() == expected.tolist()


@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([1, 7, 1500, 30_000]),
    top_p=st.sampled_from([1e-9, 0.1001, 0.5003, 0.90007, 0.99991]),
    spread=st.sampled_from([0.0, 0.3, 2.0, 6.0]),
    rounded=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_nucleus_is_the_shortest_head_of_a_stable_sort_that_is_heavy_enough(
    seed, size, top_p, spread, rounded
) -> None:
    weights = np.exp(spread * np.random.default_rng(seed).standard_normal(size))
    if rounded:  # many ties
        weights = np.ceil(4 * weights) / 4
    total = weights.sum()
    order = np.argsort(-weights, kind="stable")
    count = int(np.searchsorted(np.cumsum(weights[order]), top_p * total)) + 1
    expected = np.sort(order[: min(count, size)])
    found = nucleus(weights, float(total), top_p)
    # Sums in another order round differently, which may move the end by one token.
    assert abs(found.size - expected.size) <= 1
    assert set(found.tolist()) == set(np.sort(order[: found.size]).tolist())


def test_a_nucleus_among_many_equals_takes_the_lowest_indices() -> None:
    assert nucleus(np.ones(100_000), 100_000.0, 0.02).tolist() == list(range(2000))


def test_a_nucleus_of_everything_but_rounding_is_everything_of_any_weight() -> None:
    weights = np.array([1.0, 1e-30, 0.0, 1.0])
    assert nucleus(weights, 2.0 * (1 + 1e-12), 1 - 1e-16).tolist() == [0, 1, 3]
