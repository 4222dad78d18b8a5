"""Partial selection: the few likeliest of many, without sorting them all.

Ties go to the lowest index everywhere, so a selection is a function of the values alone.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK", "block_maxima", "nucleus", "top_k"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Values = npt.NDArray[np.floating]

BLOCK = 256
"""Values per block of `block_maxima`."""

_SORTED = 1024
"""Values from which the end of a nucleus is found by sorting."""


def block_maxima(values: Values) -> Values:
    """The largest value of every block of `BLOCK`, the last one maybe shorter; shape [blocks]."""
    whole = values.size // BLOCK * BLOCK
    maxima: Values = values[:whole].reshape(-1, BLOCK).max(axis=1)
    if whole < values.size:
        maxima = np.append(maxima, values[whole:].max())
    return maxima


def top_k(values: Values, k: int, maxima: Values) -> I64:
    """Indices of the k largest values, ascending; shape [min(k, m)].

    The k-th largest of the block maxima is no larger than the k-th largest value, so one comparison
    leaves few values to partition.

    Args:
        values: shape [m].
        k: how many, at least 1.
        maxima: their `block_maxima`.
    """
    if k >= values.size:
        return np.arange(values.size, dtype=np.int64)
    candidates: I64 | None = None
    if k <= maxima.size // 2:
        bound = np.partition(maxima, maxima.size - k)[maxima.size - k]
        candidates = np.flatnonzero(values >= bound)
        values = values[candidates]
    threshold = np.partition(values, values.size - k)[values.size - k]
    above = np.flatnonzero(values > threshold)
    ties = np.flatnonzero(values == threshold)[: k - above.size]
    kept = np.sort(np.concatenate([above, ties]))
    return kept if candidates is None else candidates[kept]


def nucleus(weights: Values, total: float, top_p: float) -> I64:
    """Indices, ascending, of the shortest run of largest weights that holds `top_p` of `total`.

    Weights that all together fall short of what may be left out cannot be part of it. That leaves
    few of a peaked row; in those the end of the run is found by halving.

    Args:
        weights: shape [m], not negative.
        total: their sum.
        top_p: in (0, 1).
    """
    wanted = top_p * total
    candidates = np.flatnonzero(weights > (1.0 - top_p) * total / weights.size * (1 - 1e-6))
    values = weights[candidates].astype(np.float64)
    if values.sum() < wanted:  # by rounding: the bound then holds in exact numbers only
        candidates = np.flatnonzero(weights)
        values = weights[candidates].astype(np.float64)
    least, ties = _cut(values, wanted)
    above = np.flatnonzero(values > least)
    equal = np.flatnonzero(values == least)[:ties]
    kept: I64 = candidates[np.sort(np.concatenate([above, equal]))]
    return kept


def _cut(values: F64, wanted: float) -> tuple[float, int]:
    """Where the run ends: its least value, and how many values that equal it belong to it.

    Each turn of the loop settles on which side of the middle value the run ends, and forgets the
    other side; so all turns together take twice as long as the first.
    """
    mass = 0.0
    pool = values
    while pool.size > _SORTED:
        middle = float(np.partition(pool, pool.size // 2)[pool.size // 2])
        above = pool[pool > middle]
        gained = float(above.sum())
        if mass + gained >= wanted:
            pool = above
            continue
        equal = int(np.count_nonzero(pool == middle))
        below = pool[pool < middle]
        if mass + gained + equal * middle >= wanted or below.size == 0:
            missing = math.ceil((wanted - mass - gained) / middle)
            return middle, min(max(missing, 1), equal)
        mass += gained + equal * middle
        pool = below
    ordered = np.sort(pool)[::-1]
    last = min(int(np.searchsorted(mass + np.cumsum(ordered), wanted)), ordered.size - 1)
    return float(ordered[last]), int(np.count_nonzero(ordered[: last + 1] == ordered[last]))
