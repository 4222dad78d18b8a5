"""What a sampling drafter tells of each token: the small distribution that it was drawn from.

Quantise, *then* sample (arXiv 2507.00605): the row is truncated and rounded first and the token is
drawn from the result, so what is declared is not an approximation of what was sampled from but the
thing itself, and ratio verification stays exact. Truncation only costs acceptance, at most the
mass dropped.

A row depends on what comes before its token, never on the token: how many tokens it keeps, and
whether a token is drafted at all, is settled before the draw. Anything else is anticipation, which
biases the output.
"""

import numpy as np
import numpy.typing as npt

from outrider.errors import DraftFailed
from outrider.types import DRAFT_TOTAL, DraftRow

__all__ = ["declare", "draw"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


def declare(token_ids: I64, probs: npt.NDArray[np.floating], size: int) -> DraftRow:
    """The row to draw from: the `size` likeliest tokens, in parts of `DRAFT_TOTAL`.

    Lower ids win ties, of truncation and of rounding (by largest remainder), so the row is a
    function of its arguments on every platform. Tokens that round to nothing are left out. O(m).

    Args:
        token_ids: int64, shape [m], ascending.
        probs: shape [m], not negative; a common factor does not matter.
        size: tokens to keep, at least 1.

    Raises:
        ValueError: `size` is below 1.
        DraftFailed: the probabilities have no finite positive sum.
    """
    if size < 1:
        raise ValueError(f"a row of {size} tokens cannot be drawn from; keep at least 1")
    if probs.size > size:
        kept = _likeliest(probs, size)
        token_ids, probs = token_ids[kept], probs[kept]
    weights = probs.astype(np.float64)
    total = float(weights.sum())
    if not (np.isfinite(total) and total > 0):
        raise DraftFailed(
            f"the drafter's probabilities sum to {total}; its weights or its sampling are broken"
        )
    counts = _quantise(weights / total)
    held = counts > 0
    return DraftRow(token_ids[held], counts[held])


def draw(row: DraftRow, ticket: int) -> int:
    """The token that holds the integer `ticket` in [0, `DRAFT_TOTAL`): as many as its count."""
    if not 0 <= ticket < DRAFT_TOTAL:
        raise ValueError(f"ticket {ticket} lies outside [0, {DRAFT_TOTAL})")
    edges = np.cumsum(row.counts, dtype=np.int64)
    return int(row.token_ids[np.searchsorted(edges, ticket, side="right")])


def _likeliest(probs: npt.NDArray[np.floating], size: int) -> I64:
    """Indices, ascending, of the `size` largest values, lower indices first among equals."""
    # A partition leaves it open which of several equals it takes, so only its threshold is used.
    threshold = np.partition(probs, probs.size - size)[probs.size - size]
    above = np.flatnonzero(probs > threshold)
    ties = np.flatnonzero(probs == threshold)[: size - above.size]
    return np.sort(np.concatenate([above, ties]))


def _quantise(probs: F64) -> npt.NDArray[np.uint16]:
    """Counts that sum to `DRAFT_TOTAL`, each within 1 of its share."""
    shares = probs * DRAFT_TOTAL
    counts = np.floor(shares)
    missing = DRAFT_TOTAL - int(counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:missing]] += 1
    return counts.astype(np.uint16)
