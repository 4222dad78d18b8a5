"""Two samples of outcomes: do they come from one distribution?

An outcome is the tuple of the first tokens of one completion. Outcomes are binned into cells, the
counts of both arms form a table of 2 x C, and its G statistic is compared with that of tables drawn
under the null hypothesis. Given the margins, a row of such a table is multivariate hypergeometric,
whatever the distribution is, so the p-value is exact up to the number of tables drawn, also where
counts are small (Agresti, Categorical Data Analysis, 3.5).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "Cell",
    "Comparison",
    "Counts",
    "Null",
    "Outcome",
    "bin_outcomes",
    "compare",
    "detectable_tv",
    "draw_null",
    "g_statistics",
    "holm",
    "p_value",
    "total_variations",
]

Outcome = tuple[int | str, ...]
"""The first tokens of a completion, as ids, or (escaped) pieces of its text if there are no ids."""

Counts = npt.NDArray[np.int64]

_TABLES_AT_ONCE = 20_000
_POWER = 0.8
_ROUNDING = 1e-9  # equal tables may differ by this, relatively, in the order of their sums


@dataclass(frozen=True, slots=True)
class Cell:
    """Outcomes that are counted together.

    Attributes:
        pieces: what they begin with.
        whole: they are these pieces and nothing more; otherwise all rarer ones with this beginning.
    """

    pieces: Outcome
    whole: bool

    def __str__(self) -> str:
        if not self.pieces:
            return "(empty)" if self.whole else "(all others)"
        if isinstance(self.pieces[0], str):
            said = f"'{''.join(str(piece) for piece in self.pieces)}'"
        else:
            said = " ".join(str(piece) for piece in self.pieces)
        return said if self.whole else f"{said} ..."


@dataclass(frozen=True, slots=True, eq=False)
class Null:
    """What honest samples of the same margins show.

    Attributes:
        g: G statistics, shape [R].
        tv: total variation distances between the arms, shape [R].
    """

    g: npt.NDArray[np.float64]
    tv: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Two samples side by side.

    Attributes:
        cells: the likeliest first.
        counts: shape [2, C]: with speculation, without.
        g: the G statistic.
        p_value: how often honest samples show at least this G.
        tv: total variation distance between the two samples.
        tv_floor: what it is on average for honest samples.
        null: what both were compared with.
    """

    cells: tuple[Cell, ...]
    counts: Counts
    g: float
    p_value: float
    tv: float
    tv_floor: float
    null: Null

    def worst(self, limit: int) -> list[tuple[Cell, int, int]]:
        """The cells that differ most, with their two counts."""
        sizes = self.counts.sum(axis=1)
        gap = self.counts[0] / sizes[0] - self.counts[1] / sizes[1]
        spread = gap / np.sqrt(self.counts.sum(axis=0))
        order = np.argsort(-np.abs(spread), kind="stable")[:limit]
        return [(self.cells[i], int(self.counts[0, i]), int(self.counts[1, i])) for i in order]


def bin_outcomes(
    first: Sequence[Outcome], second: Sequence[Outcome], *, max_cells: int, min_count: int
) -> tuple[tuple[Cell, ...], Counts]:
    """Cells for two samples, and the counts of both, shape [2, C].

    An outcome too rare for a cell of its own is counted with other rare ones that share all but
    its last token, these if need be with those that share all but two, and so on: so a shift among
    rare outcomes still shows in their beginnings. The cells depend on both samples together and not
    on which outcome came from which, as the exactness of the test demands.

    Args:
        first, second: the samples.
        max_cells: most cells, at least 2.
        min_count: fewest outcomes, of both samples together, in a cell other than the last.
    """
    whole: dict[Cell, list[int]] = {}
    for row, sample in enumerate((first, second)):
        for outcome in sample:
            whole.setdefault(Cell(outcome, True), [0, 0])[row] += 1
    enough = min_count
    counts = _merge(whole, enough)
    while len(counts) > max_cells:
        enough += 1 + enough // 4
        counts = _merge(whole, enough)
    ordered = sorted(counts.items(), key=lambda pair: (not pair[0].pieces, -sum(pair[1])))
    cells = tuple(cell for cell, _ in ordered)
    return cells, np.array([pair for _, pair in ordered], dtype=np.int64).reshape(-1, 2).T


def _merge(counts: Mapping[Cell, Sequence[int]], enough: int) -> dict[Cell, list[int]]:
    """Merge cells of fewer than `enough` outcomes into those with a shorter beginning."""
    merged = {cell: list(pair) for cell, pair in counts.items()}
    for length in range(max((len(cell.pieces) for cell in counts), default=0), 0, -1):
        rare = [c for c, n in merged.items() if len(c.pieces) == length and sum(n) < enough]
        for cell in rare:
            gone = merged.pop(cell)
            kept = merged.setdefault(Cell(cell.pieces[:-1], False), [0, 0])
            kept[0] += gone[0]
            kept[1] += gone[1]
    return merged


def g_statistics(first: Counts, totals: Counts) -> npt.NDArray[np.float64]:
    """G = 2 sum O ln(O / E) of tables with two rows, shape [R].

    Args:
        first: first rows, shape [R, C].
        totals: sums of both rows, shape [C], the same for all tables.
    """
    size, total = int(first[0].sum()), int(totals.sum())
    logs = np.log(np.maximum(np.arange(total + 1), 1))
    entropy = np.arange(total + 1) * logs  # n ln n, with 0 at 0
    margins = entropy[totals].sum() + entropy[size] + entropy[total - size] - entropy[total]
    inside = entropy[first].sum(axis=1) + entropy[totals - first].sum(axis=1)
    g: npt.NDArray[np.float64] = np.maximum(2 * (inside - margins), 0.0)
    return g


def total_variations(first: Counts, totals: Counts) -> npt.NDArray[np.float64]:
    """Total variation distances of both rows' shares, shape [R]; see `g_statistics`."""
    size, total = int(first[0].sum()), int(totals.sum())
    gaps = first / size - (totals - first) / (total - size)
    tv: npt.NDArray[np.float64] = np.abs(gaps).sum(axis=1) / 2
    return tv


def draw_null(counts: Counts, tables: int, rng: np.random.Generator) -> Null:
    """Statistics of `tables` tables with the margins of `counts`, under the null hypothesis."""
    totals = counts.sum(axis=0)
    parts = [
        (g_statistics(first, totals), total_variations(first, totals))
        for first in _first_rows(totals, int(counts[0].sum()), tables, rng)
    ]
    return Null(np.concatenate([g for g, _ in parts]), np.concatenate([tv for _, tv in parts]))


def _first_rows(
    totals: Counts, size: int, tables: int, rng: np.random.Generator
) -> Iterator[Counts]:
    for start in range(0, tables, _TABLES_AT_ONCE):
        many = min(_TABLES_AT_ONCE, tables - start)
        yield rng.multivariate_hypergeometric(totals, size, size=many, method="marginals")


def p_value(g: float, null_g: npt.NDArray[np.float64]) -> float:
    """(1 + number of null statistics that reach `g`) / (R + 1): never 0, and never too small."""
    reached = int((null_g >= g * (1 - _ROUNDING)).sum())
    return (1 + reached) / (null_g.size + 1)


def compare(
    first: Sequence[Outcome],
    second: Sequence[Outcome],
    *,
    tables: int,
    rng: np.random.Generator,
    max_cells: int = 100,
    min_count: int = 10,
) -> Comparison:
    """Compare two samples, neither of them empty; see `bin_outcomes` and `draw_null`."""
    cells, counts = bin_outcomes(first, second, max_cells=max_cells, min_count=min_count)
    totals = counts.sum(axis=0)
    null = draw_null(counts, tables, rng)
    g = float(g_statistics(counts[:1], totals)[0])
    return Comparison(
        cells=cells,
        counts=counts,
        g=g,
        p_value=p_value(g, null.g),
        tv=float(total_variations(counts[:1], totals)[0]),
        tv_floor=float(null.tv.mean()),
        null=null,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: below alpha means rejected, with any false rejection at most alpha likely.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [1.0] * len(p_values)
    so_far = 0.0
    for rank, index in enumerate(order):
        so_far = max(so_far, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = so_far
    return adjusted


def detectable_tv(
    null_g: npt.NDArray[np.float64],
    samples: int,
    *,
    level: float,
    rng: np.random.Generator,
    min_count: int = 10,
) -> float:
    """The shift that a test finds in 8 cases of 10, roughly, however it is spread over the cells.

    A shift of total variation d moves G by at least 2 samples d^2 on average (Cauchy-Schwarz; equal
    for one that changes all cells by the same factor, which is hardest to see). Under it G is about
    that of the null plus a normal part, as for the noncentral chi-square distribution.

    Args:
        null_g: statistics under the null hypothesis, shape [R].
        samples: in each arm.
        level: of the test.
        rng: draws the normal part.
        min_count: as given to `bin_outcomes`: what is rarer has no cell of its own.
    """
    critical = float(np.quantile(null_g, 1 - level))
    normal = rng.standard_normal(null_g.size)

    def power(shift: float) -> float:
        return float((null_g + 2 * math.sqrt(shift) * normal + shift > critical).mean())

    low, high = 0.0, 1.0
    while power(high) < _POWER:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= _POWER else (middle, high)
    return min(1.0, max(math.sqrt(high / (2 * samples)), min_count / samples))
