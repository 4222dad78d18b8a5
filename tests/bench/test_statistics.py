"""Spreads and intervals, against values known otherwise."""

from __future__ import annotations

import math
import random

import pytest

from outrider.bench.statistics import geometric_mean_interval, spread


def test_a_spread_is_mean_median_and_a_percentile_between_neighbours() -> None:
    found = spread([1.0, 2.0, 3.0, 10.0])
    assert (found.mean, found.median) == (4.0, 2.5)
    assert found.p99 == pytest.approx(3 + 0.97 * 7)


def test_a_weight_counts_a_value_so_many_times() -> None:
    assert spread([1.0, 5.0], [3, 1]) == spread([1.0, 1.0, 1.0, 5.0])


def test_nothing_has_no_spread() -> None:
    assert spread([]) is None
    assert spread([1.0], [0]) is None


def test_equal_ratios_leave_no_doubt() -> None:
    found = geometric_mean_interval([1.5, 1.5, 1.5])
    assert (found.mean, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))


def test_the_interval_of_a_large_sample_is_the_normal_one() -> None:
    draw = random.Random(1)
    logs = [draw.gauss(0.2, 0.3) for _ in range(400)]
    found = geometric_mean_interval([math.exp(value) for value in logs])
    mean = sum(logs) / len(logs)
    sigma = math.sqrt(sum((value - mean) ** 2 for value in logs) / len(logs) / len(logs))
    assert math.log(found.mean) == pytest.approx(mean)
    assert math.log(found.low) == pytest.approx(mean - 1.96 * sigma, abs=0.2 * sigma)
    assert math.log(found.high) == pytest.approx(mean + 1.96 * sigma, abs=0.2 * sigma)


def test_swapping_both_sides_inverts_mean_and_interval() -> None:
    ratios = [0.5, 1.0, 3.0, 4.0, 1.2]
    one = geometric_mean_interval(ratios)
    other = geometric_mean_interval([1 / ratio for ratio in ratios])
    assert (other.mean, other.low, other.high) == pytest.approx(
        (1 / one.mean, 1 / one.high, 1 / one.low), rel=0.02
    )


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [-1.0]])
def test_what_has_no_geometric_mean_is_refused(ratios) -> None:
    with pytest.raises(ValueError, match="geometric mean"):
        geometric_mean_interval(ratios)
