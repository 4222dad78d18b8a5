"""How well a sample fits an exact distribution over few outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

LEAST = 5.0
"""Expected outputs of a cell that is not put together with others."""


@dataclass(frozen=True)
class Fit:
    """How a sample fits a joint distribution.

    Attributes:
        size: outputs sampled.
        impossible: those of them that have probability 0.
        g: 2 sum O ln(O / E) over cells of at least `LEAST` expected outputs; rarer outcomes share
            one. Without the impossible ones.
        df: degrees of freedom.
        p_value: chance of this g or more, by the chi-square distribution.
        tv: total variation distance between sample and joint.
        tv_floor: what it is on average for an honest sample: half the sum over all cells of the
            mean deviation, sqrt(2 p (1 - p) / (pi N)).
    """

    size: int
    impossible: int
    g: float
    df: int
    p_value: float
    tv: float
    tv_floor: float


def fit(counts: Mapping[tuple[int, ...], int], joint: Mapping[tuple[int, ...], float]) -> Fit:
    cells = sorted(outcome for outcome, prob in joint.items() if prob > 0)
    probs = np.array([joint[cell] for cell in cells])
    observed = np.array([counts.get(cell, 0) for cell in cells], dtype=np.int64)
    size = sum(counts.values())
    pooled, expected = pool(observed, size * probs)
    g = float(g_statistics(pooled[None], expected)[0])
    impossible = size - int(observed.sum())
    return Fit(
        size=size,
        impossible=impossible,
        g=g,
        df=expected.size - 1,
        p_value=chi_square_tail(g, expected.size - 1),
        tv=float(np.abs(observed / size - probs).sum() + impossible / size) / 2,
        tv_floor=float(np.sqrt(2 * probs * (1 - probs) / (math.pi * size)).sum()) / 2,
    )


def pool(observed: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts and expectations with the rare cells put together; shapes [..., C] and [C]."""
    rare = expected < LEAST
    if not rare.any():
        return observed, expected
    rest = observed[..., rare].sum(axis=-1, keepdims=True)
    return (
        np.concatenate([observed[..., ~rare], rest], axis=-1),
        np.append(expected[~rare], expected[rare].sum()),
    )


def g_statistics(observed: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """G of tables of counts, shape [R, C] to [R]."""
    ratios = np.where(observed > 0, observed / expected, 1.0)
    return 2.0 * (observed * np.log(ratios)).sum(axis=-1)


def chi_square_tail(value: float, df: int) -> float:
    """Chance that a chi-square variable exceeds `value`, in closed form for a whole df.

    Source: Abramowitz and Stegun, 26.4.4 and 26.4.5.
    """
    half = max(value, 0.0) / 2
    odd = df % 2
    tail = math.erfc(math.sqrt(half)) if odd else 0.0
    if half == 0.0:
        return 1.0
    for index in range(df // 2):
        power = index + odd / 2
        tail += math.exp(power * math.log(half) - half - math.lgamma(power + 1))
    return min(tail, 1.0)
