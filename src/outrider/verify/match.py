"""Matching: the target draws its own token at every position and keeps the draft while they agree.

Exact for *every* draft (late, lost, cached, guessed or malicious), since what is emitted is the
target's own sample. The draft only decides how many positions one pass can settle.
"""

from collections.abc import Callable

import numpy as np

from outrider.types import TokenIds
from outrider.verify.outcome import Outcome, Probs, check_shapes

__all__ = ["coupling_acceptance", "greedy_law", "match", "onehot_law"]


def match(draft_tokens: TokenIds, sample: Callable[[int], int]) -> tuple[int, int]:
    """The thin sampler: accepted count, and the token that follows.

    Args:
        draft_tokens: k drafted tokens.
        sample: the target's token at offset i behind the committed ones, given drafts 0..i-1.
            Called for i = 0, 1, ... up to the first disagreement, at most k + 1 times.
    """
    for index, drafted in enumerate(draft_tokens):
        token = sample(index)
        if token != drafted:
            return index, token
    return len(draft_tokens), sample(len(draft_tokens))


def greedy_law(draft_tokens: TokenIds, target_scores: Probs) -> list[Outcome]:
    """The law of matching at temperature 0: one certain outcome.

    Args:
        draft_tokens: k drafted tokens.
        target_scores: shape [k + 1, V], logits or probabilities; the lowest id wins ties.
    """
    check_shapes(draft_tokens, target_scores, None)
    accepted, token = match(draft_tokens, lambda index: int(np.argmax(target_scores[index])))
    return [Outcome(1.0, accepted, np.eye(target_scores.shape[1])[token])]


def onehot_law(draft_tokens: TokenIds, target_probs: Probs) -> list[Outcome]:
    """The law of matching a deterministic draft: accept with the target's probability of the
    drafted token, otherwise emit from the target's distribution without it.

    Args:
        draft_tokens: k drafted tokens.
        target_probs: shape [k + 1, V], rows sum to 1; row i follows the first i drafts.
    """
    check_shapes(draft_tokens, target_probs, None)
    outcomes = []
    reached = 1.0
    for index, drafted in enumerate(draft_tokens):
        row = target_probs[index]
        agreed = float(row[drafted])
        if agreed < 1.0 and reached > 0.0:
            rest = row.copy()
            rest[drafted] = 0.0
            outcomes.append(Outcome(reached * float(rest.sum()), index, rest / rest.sum()))
        reached *= agreed
    if reached > 0.0:
        outcomes.append(Outcome(reached, len(draft_tokens), target_probs[-1]))
    return outcomes


def coupling_acceptance(draft_probs: Probs, target_probs: Probs) -> float:
    """Probability that Gumbel-coupled samples of two rows agree (arXiv 2408.07978).

    sum over i of 1 / (sum over j of max(target_j / target_i, draft_j / draft_i)), over common
    support.

    Args:
        draft_probs: shape [V].
        target_probs: shape [V].
    """
    common = np.flatnonzero((draft_probs > 0) & (target_probs > 0))
    total = 0.0
    for token in common:
        ratios = np.maximum(target_probs / target_probs[token], draft_probs / draft_probs[token])
        total += 1.0 / float(ratios.sum())
    return total
