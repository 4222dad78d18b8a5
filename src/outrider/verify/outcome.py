"""What a verifier may decide, as data: the shape of an outcome law."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.types import TokenIds

__all__ = ["Outcome", "Probs", "check_shapes"]

Probs = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way in which the judgement of a given draft can end.

    Attributes:
        probability: of this outcome, given the draft.
        accepted_count: draft tokens kept.
        next_probs: shape [V]: distribution of the one token that follows them.
    """

    probability: float
    accepted_count: int
    next_probs: Probs


def check_shapes(draft_tokens: TokenIds, target_probs: Probs, draft_probs: Probs | None) -> None:
    """Raise `ValueError` unless there are k drafted tokens, k + 1 target rows and k draft rows."""
    k = len(draft_tokens)
    if target_probs.ndim != 2 or target_probs.shape[0] != k + 1:
        raise ValueError(
            f"target_probs has shape {target_probs.shape}; {k} drafts need [{k + 1}, V]"
        )
    if draft_probs is not None and draft_probs.shape != (k, target_probs.shape[1]):
        raise ValueError(
            f"draft_probs has shape {draft_probs.shape}; expected [{k}, {target_probs.shape[1]}]"
        )
