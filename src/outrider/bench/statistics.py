"""Spreads of measured times, and paired ratios with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

__all__ = ["Interval", "Spread", "geometric_mean_interval", "spread"]

_RESAMPLES: Final = 2000
_LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True)
class Spread:
    """How values are spread. The percentile is interpolated between its neighbours."""

    mean: float
    median: float
    p99: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A geometric mean, and where it lies with 95% confidence."""

    mean: float
    low: float
    high: float


def spread(values: Sequence[float], weights: Sequence[int] | None = None) -> Spread | None:
    """The spread of `values`, each taken as often as its weight says; None of none."""
    if not values:
        return None
    all_values = np.repeat(values, weights) if weights is not None else np.asarray(values)
    if not all_values.size:
        return None
    return Spread(
        float(all_values.mean()),
        float(np.median(all_values)),
        float(np.percentile(all_values, 99)),
    )


def geometric_mean_interval(ratios: Sequence[float]) -> Interval:
    """The geometric mean of positive ratios with its 95% percentile bootstrap interval.

    The resamples are the same in every run. A single ratio is its own interval, which says nothing.

    Raises:
        ValueError: there are no ratios, or one is not positive.
    """
    if not ratios or min(ratios) <= 0:
        raise ValueError("a geometric mean needs at least one ratio, and all positive")
    logs = np.log(np.asarray(ratios, dtype=float))
    rng = np.random.default_rng(0)
    means = [logs[rng.integers(logs.size, size=logs.size)].mean() for _ in range(_RESAMPLES)]
    outside = (1 - _LEVEL) / 2
    low, high = np.quantile(means, (outside, 1 - outside))
    return Interval(float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high)))
