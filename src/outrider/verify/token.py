"""The law of token-level ratio verification (arXiv 2211.17192, 2302.01318).

Exact only if every drafted token really was sampled from the declared `draft_probs` and every
draft once drawn is judged; see `match` for the rule that needs neither. `ratio` has the sampler.
"""

import numpy as np

from outrider.types import TokenIds
from outrider.verify.outcome import Outcome, Probs, check_shapes

__all__ = ["capped_ratio", "residual", "token_law"]


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
        draft_row, target_row = draft_probs[index], target_probs[index]
        accept = capped_ratio(float(target_row[drafted]), float(draft_row[drafted]))
        if accept < 1.0 and reached > 0.0:
            outcomes.append(
                Outcome(reached * (1.0 - accept), index, residual(draft_row, target_row))
            )
        reached *= accept
    if reached > 0.0:
        outcomes.append(Outcome(reached, len(draft_tokens), target_probs[-1]))
    return outcomes


def capped_ratio(target: float, draft: float) -> float:
    """min(1, target / draft), for a positive `draft` however small."""
    return 1.0 if target >= draft else target / draft


def residual(draft_row: Probs, target_row: Probs, reach: float = 1.0) -> Probs:
    """Normalised positive part of reach * target - draft, shape [V].

    Only asked for where a rejection is possible, so it has mass, unless the rows differ by
    rounding alone; then they are the same distribution.
    """
    rest = np.maximum(reach * target_row - draft_row, 0.0)
    mass = rest.sum()
    return rest / mass if mass > 0.0 else target_row
