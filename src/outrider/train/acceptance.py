"""How likely a drafted token is accepted, given the token that the target really said there.

Text is the target's own, so what remains to chance is the draft. For every rule of verification,
how rounds fall upon a given text is known exactly:

- *Greedy* (temperature 0): a token is accepted if it is the draft's likeliest.
- *Matching* of a draft that is coupled by the noise (`sampling.race`). The race gives each token v
  an exponential clock E_v; the target says the v with the least E_v / target_probs[v], the draft
  likewise. Both say y if E_v > E_y * max(target_v / target_y, draft_v / draft_y) for all other v,
  which has the probability 1 / sum_v max(target_v / target_y, draft_v / draft_y). Given that the
  target says y, which has the probability target_y, that leaves

      1 / sum_v max(target_v, draft_v * target_y / draft_y).

  Noise of different positions is independent, so the acceptances of one draft are as well.
- *Token* ratios. A token y is emitted as accepted with the probability min(target_y, draft_y), and
  as recovered with max(target_y - draft_y, 0): together target_y, whatever came before. So given y
  it was accepted with the probability min(1, draft_y / target_y).
- *Block* ratios. `verify.block` accepts at least i tokens X_1..X_i, drawn from the draft, with the
  probability P_i, where P_i = min(1, P_(i-1) * r_i) and r_i = target / draft at X_i. What follows
  is then the target's, so given the text the probability is P_i / (r_1 * ... * r_i), which is
  min over j <= i of 1 / (r_1 * ... * r_j), and at most 1.

Of the target's rows only the likeliest tokens are kept, and the one that was said: `SparseRow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from outrider.sampling import Support
from outrider.sampling.select import nucleus

__all__ = ["SparseRow", "block_survival", "coupled", "ratio", "sparse_row", "survival"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_KEPT: Final = 0.9999
"""Of each row's mass. What this leaves out changes no acceptance by more than a part in as many."""

_MOST_LOG: Final = 700.0
"""Logarithms of ratios are kept within this, where their exponentials are finite."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseRow:
    """A processed distribution of the target that a token was drawn from.

    Attributes:
        token_ids: int32 [s], the likeliest tokens, ascending.
        probs: float32 [s], of these.
        tail: what all other tokens have together.
        said: the probability of the token that was drawn, wherever it stands.
    """

    token_ids: npt.NDArray[np.int32]
    probs: npt.NDArray[np.float32]
    tail: float
    said: float


def sparse_row(support: Support, said: int) -> SparseRow:
    """What is kept of a row from which `said` was drawn."""
    weights, total = support.weights(), support.total
    kept = nucleus(weights, total, _KEPT)
    probs = weights[kept].astype(np.float64) / total
    return SparseRow(
        support.ids[kept].astype(np.int32),
        probs.astype(np.float32),
        max(1.0 - float(probs.sum()), 0.0),
        float(support.probs_at(np.array([said]))[0]),
    )


def coupled(row: SparseRow, draft_on_row: F64, draft_said: float) -> float:
    """Acceptance of a draft that is coupled with the target by the noise, at the token said.

    The tail is taken as if it were one token. Were every token of it counted by itself, the sum
    below would grow by at most `row.tail`.

    Args:
        row: the target's.
        draft_on_row: float64 [s], the draft's probabilities of `row.token_ids`.
        draft_said: its probability of the token said.
    """
    if draft_said <= 0:
        return 0.0
    scaled = row.said / draft_said
    inside = float(np.maximum(row.probs, scaled * draft_on_row).sum())
    outside = max(1.0 - float(draft_on_row.sum()), 0.0)
    return min(1.0 / (inside + max(row.tail, scaled * outside)), 1.0)


def ratio(row: SparseRow, draft_said: float) -> float:
    """draft / target at the token said: what token and block ratios go by."""
    return draft_said / row.said if row.said > 0 else np.inf


def survival(acceptance: Sequence[float] | F64, lookahead: int) -> F64:
    """How likely the first j tokens of a draft are accepted, by where it starts.

    Args:
        acceptance: [n], of the token of each place, of its own; that of token ratios is capped
            at 1 here.
        lookahead: tokens drafted at most.

    Returns:
        float64 [n, lookahead + 1]: 1 for j = 0, and 0 beyond the end of the text.
    """
    logs = _logs(np.minimum(np.asarray(acceptance, dtype=np.float64), 1.0))
    return _survival(logs, lookahead, running_minimum=False)


def block_survival(ratios: Sequence[float] | F64, lookahead: int) -> F64:
    """The same under block ratios.

    Args:
        ratios: [n], draft / target at the token of each place, not capped.
    """
    return _survival(_logs(np.asarray(ratios, dtype=np.float64)), lookahead, running_minimum=True)


def _logs(values: F64) -> F64:
    with np.errstate(divide="ignore"):
        logs: F64 = np.minimum(np.log(values), _MOST_LOG)
    return logs


def _survival(logs: F64, lookahead: int, *, running_minimum: bool) -> F64:
    n = logs.size
    beyond = np.concatenate([logs, np.full(lookahead, -np.inf)])
    windows = np.lib.stride_tricks.sliding_window_view(beyond, lookahead)[:n] if lookahead else None
    reached = np.ones((n, lookahead + 1))
    if windows is not None and n:
        sums = np.cumsum(windows, axis=1)
        if running_minimum:
            sums = np.minimum.accumulate(sums, axis=1)
        reached[:, 1:] = np.exp(np.minimum(sums, 0.0))
    return reached
