"""Token-level ratio verification (arXiv 2211.17192, 2302.01318).

Exact only if every drafted token really was sampled from the declared `draft_probs` and every
draft once drawn is judged; see `match` for the rule that needs neither.
"""

import numpy as np

from outrider.types import TokenIds
from outrider.verify.outcome import Outcome, Probs, check_shapes

__all__ = ["token_law", "verify_tokens"]


def token_law(draft_tokens: TokenIds, draft_probs: Probs, target_probs: Probs) -> list[Outcome]:
    """The law of the token-level rule for one given draft.

    Draft i is accepted with probability min(1, target / draft) of its token; the first rejection
    emits from the normalised positive part of target - draft; a draft accepted whole is followed
    by the target's own row.

    Args:
        draft_tokens: k drafted tokens.
        draft_probs: shape [k, V], rows sum to 1, positive at the drafted tokens.
        target_probs: shape [k + 1, V], rows sum to 1.
    """
    check_shapes(draft_tokens, target_probs, draft_probs)
    outcomes = []
    reached = 1.0
    for index, drafted in enumerate(draft_tokens):
        accept = _accept_probability(drafted, draft_probs[index], target_probs[index])
        if accept < 1.0 and reached > 0.0:
            residual = _residual(draft_probs[index], target_probs[index])
            outcomes.append(Outcome(reached * (1.0 - accept), index, residual))
        reached *= accept
    if reached > 0.0:
        outcomes.append(Outcome(reached, len(draft_tokens), target_probs[-1]))
    return outcomes


def verify_tokens(
    draft_tokens: TokenIds, draft_probs: Probs, target_probs: Probs, uniforms: Probs
) -> tuple[int, int]:
    """The thin sampler over `token_law`: accepted count, and the token that follows.

    Args:
        draft_tokens: k drafted tokens.
        draft_probs: as for `token_law`.
        target_probs: as for `token_law`.
        uniforms: shape [k + 1] in [0, 1): one per acceptance test, the last picks the token that
            follows. They must be fresh in every round.
    """
    check_shapes(draft_tokens, target_probs, draft_probs)
    for index, drafted in enumerate(draft_tokens):
        if uniforms[index] >= _accept_probability(drafted, draft_probs[index], target_probs[index]):
            residual = _residual(draft_probs[index], target_probs[index])
            return index, _invert(residual, float(uniforms[-1]))
    return len(draft_tokens), _invert(target_probs[-1], float(uniforms[-1]))


def _accept_probability(drafted: int, draft_row: Probs, target_row: Probs) -> float:
    return float(min(1.0, target_row[drafted] / draft_row[drafted]))


def _residual(draft_row: Probs, target_row: Probs) -> Probs:
    """Normalised positive part of target - draft.

    Only asked for where a rejection is possible, so it has mass, unless the rows differ by
    rounding alone; then they are the same distribution.
    """
    residual = np.maximum(target_row - draft_row, 0.0)
    mass = residual.sum()
    return residual / mass if mass > 0.0 else target_row


def _invert(probs: Probs, uniform: float) -> int:
    """The token at quantile `uniform`; never one of probability 0, however sums round."""
    support = np.flatnonzero(probs)
    index = int(np.searchsorted(np.cumsum(probs[support]), uniform, side="right"))
    return int(support[min(index, support.size - 1)])
