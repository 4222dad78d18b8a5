"""The samplers over `token_law` and `block_law`: sparse, lazy, one target row at a time.

A declared draft row has few tokens, so a target row is judged by its probabilities at those alone;
only the row behind the kept tokens is ever gone through whole, once. All randomness comes in as
arguments. It must be fresh in every round: uniforms that are reused, by position or between the
tests of one round, bias the output.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from outrider.types import DraftRow, SampledDraft
from outrider.verify.block import pass_probability
from outrider.verify.token import capped_ratio

__all__ = ["TargetRow", "verify_block", "verify_tokens"]

_BLOCK = 512
"""Weights that are summed up at once to find a quantile."""

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class TargetRow(Protocol):
    """The target's processed distribution at one position."""

    @property
    def token_ids(self) -> I64 | None:
        """int64, shape [m], ascending: the support. None is every id 0..V-1."""
        ...

    def probs(self) -> npt.NDArray[np.floating]:
        """Shape [m]: probabilities of the support, summing to 1 up to rounding. O(m)."""
        ...

    def probs_at(self, token_ids: I64) -> F64:
        """Shape [s]: probabilities of these ascending ids, 0 outside the support.

        O(s log m), behind one pass over the row for its normaliser.
        """
        ...


def verify_tokens(
    draft: SampledDraft, rows: Callable[[int], TargetRow], uniforms: F64
) -> tuple[int, int]:
    """Judge a draft by `token_law`: accepted count, and the token that follows.

    Args:
        draft: k tokens, each drawn from its declared row.
        rows: the target's row behind the first i drafted tokens. Asked for i = 0, 1, ... up to
            the first rejection, once each.
        uniforms: shape [k + 1] in [0, 1): one per acceptance test, the last picks the token that
            follows.

    Raises:
        ValueError: the uniforms or the declared rows do not fit the draft.
    """
    places = _check(draft, uniforms)
    for index, (declared, place) in enumerate(zip(draft.rows, places, strict=True)):
        row = rows(index)
        (target_prob,) = row.probs_at(declared.token_ids[place : place + 1])
        draft_prob = declared.probs()[place]
        if uniforms[index] >= capped_ratio(float(target_prob), float(draft_prob)):
            return index, _pick_residual(row, declared, 1.0, float(uniforms[-1]))
    return len(draft), _pick(rows(len(draft)), float(uniforms[-1]))


def verify_block(
    draft: SampledDraft, rows: Callable[[int], TargetRow], uniforms: F64
) -> tuple[int, int]:
    """Judge a draft by `block_law`: accepted count, and the token that follows.

    Args:
        draft: k tokens, each drawn from its declared row.
        rows: the target's row behind the first i drafted tokens. Asked for i = 0, 1, ..., once
            each, up to a drafted token that the target never emits; for i = k only if the whole
            draft is kept.
        uniforms: shape [k + 1] in [0, 1): uniforms[i - 1] tests whether length i passes, the last
            picks the token that follows.

    Raises:
        ValueError: the uniforms or the declared rows do not fit the draft.
    """
    places = _check(draft, uniforms)
    k = len(draft)
    reach = 1.0
    kept = (0, rows(0), reach)
    for index, (declared, place) in enumerate(zip(draft.rows, places, strict=True)):
        row = kept[1] if index == 0 else rows(index)
        target_probs, draft_probs = row.probs_at(declared.token_ids), declared.probs()
        if index > 0:
            # What lies outside the declared row is surplus whole. Rows in float32 may sum to
            # more than 1, so the rest is clipped.
            inside = np.maximum(reach * target_probs - draft_probs, 0.0).sum()
            outside = reach * max(1.0 - float(target_probs.sum()), 0.0)
            if uniforms[index - 1] < pass_probability(reach, float(inside) + outside):
                kept = (index, row, reach)
        reach = capped_ratio(reach * float(target_probs[place]), float(draft_probs[place]))
        if reach == 0.0:
            break
    if uniforms[k - 1] < reach:
        return k, _pick(rows(k), float(uniforms[-1]))
    accepted, row, reach = kept
    return accepted, _pick_residual(row, draft.rows[accepted], reach, float(uniforms[-1]))


def _check(draft: SampledDraft, uniforms: F64) -> list[int]:
    """Where each drafted token lies in its declared row."""
    k = len(draft)
    if k == 0 or len(draft.rows) != k:
        raise ValueError(
            f"a draft of {k} tokens with {len(draft.rows)} rows; give each of its tokens, "
            "at least one, the row that it was drawn from"
        )
    if uniforms.shape != (k + 1,):
        raise ValueError(f"uniforms has shape {uniforms.shape}; {k} drafts need [{k + 1}]")
    places = []
    for token, row in zip(draft.token_ids, draft.rows, strict=True):
        place = int(np.searchsorted(row.token_ids, token))
        if place == row.token_ids.size or row.token_ids[place] != token:
            raise ValueError(
                f"{draft.source} drafted token {token}, which its declared row does not hold; "
                "declare the row that the token is drawn from"
            )
        places.append(place)
    return places


def _pick(row: TargetRow, uniform: float) -> int:
    """A token of the target's own row."""
    return _token(row, _invert(row.probs(), uniform))


def _pick_residual(row: TargetRow, declared: DraftRow, reach: float, uniform: float) -> int:
    """A token of the positive part of reach * target - draft.

    A residual without mass means rows that differ by rounding alone, hence the target's own.
    """
    weights = np.multiply(row.probs(), reach, dtype=np.float64)
    if row.token_ids is None:
        places = declared.token_ids
        shared = places < weights.size
    else:
        places = np.searchsorted(row.token_ids, declared.token_ids)
        places = np.minimum(places, row.token_ids.size - 1)
        shared = row.token_ids[places] == declared.token_ids
    places, taken = places[shared], declared.probs()[shared]
    weights[places] = np.maximum(weights[places] - taken, 0.0)
    if not weights.any():
        return _pick(row, uniform)
    return _token(row, _invert(weights, uniform))


def _token(row: TargetRow, place: int) -> int:
    return place if row.token_ids is None else int(row.token_ids[place])


def _invert(weights: npt.NDArray[np.floating], uniform: float) -> int:
    """The index at quantile `uniform` of unnormalised weights, never one of weight 0.

    Sums over blocks find the block, and running sums within it the index: running sums over a
    whole vocabulary take longer than all the rest of a verification.
    """
    starts = np.arange(0, weights.size, _BLOCK)
    edges = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    quantile = uniform * edges[-1]
    # Where products and sums round up to the whole, the quantile lies at the last edge.
    block = min(int(np.searchsorted(edges, quantile, side="right")), int(np.argmax(edges)))
    within = weights[starts[block] : starts[block] + _BLOCK]
    before = edges[block - 1] if block else 0.0
    place = int(np.searchsorted(before + np.cumsum(within, dtype=np.float64), quantile, "right"))
    if place == within.size or within[place] == 0:
        place = int(np.flatnonzero(within)[-1])
    return int(starts[block]) + place
