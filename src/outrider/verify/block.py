"""The law of block verification (arXiv 2403.10444): the draft is judged as a whole.

Exact under the same conditions as `token`, and never accepts fewer tokens on average: a token
that is likelier under the target than under the draft makes up for an earlier one that is not.
`ratio` has the sampler.
"""

import numpy as np

from outrider.types import TokenIds
from outrider.verify.outcome import Outcome, Probs, check_shapes
from outrider.verify.token import capped_ratio, residual

__all__ = ["block_law", "pass_probability"]


def block_law(draft_tokens: TokenIds, draft_probs: Probs, target_probs: Probs) -> list[Outcome]:
    """The law of the block rule for one given draft.

    With reach_0 = 1 and reach_i = min(1, reach_{i-1} * target / draft) of the i-th drafted token,
    each length i = 1..k passes, independently of the others, with probability

        surplus_i / (surplus_i + 1 - reach_i)  for i < k,  reach_k  for i = k,
        surplus_i = sum over x of max(reach_i * target_i(x) - draft_i(x), 0).

    The longest length that passes is kept, even where shorter ones fail, and length 0 always
    passes. Less than the whole draft is followed by a token of the normalised positive part of
    reach_i * target_i - draft_i, the whole by one of the target's own row. So at least i tokens
    are kept with probability reach_i, given the first i.

    Args:
        draft_tokens: k drafted tokens.
        draft_probs: shape [k, V], rows sum to 1, positive at the drafted tokens.
        target_probs: shape [k + 1, V], rows sum to 1.
    """
    check_shapes(draft_tokens, target_probs, draft_probs)
    k = len(draft_tokens)
    reaches, passes = [1.0], [1.0]
    for index, drafted in enumerate(draft_tokens):
        mass = reaches[-1] * float(target_probs[index, drafted])
        reach = capped_ratio(mass, float(draft_probs[index, drafted]))
        if reach == 0.0:
            break  # no longer draft passes, so the rows behind do not matter
        if index + 1 == k:
            passed = reach
        else:
            rest = np.maximum(reach * target_probs[index + 1] - draft_probs[index + 1], 0.0)
            passed = pass_probability(reach, float(rest.sum()))
        reaches.append(reach)
        passes.append(passed)
    outcomes = []
    longer_failed = 1.0
    for length in reversed(range(len(reaches))):
        probability = longer_failed * passes[length]
        if probability > 0.0:
            if length == k:
                following = target_probs[k]
            else:
                following = residual(draft_probs[length], target_probs[length], reaches[length])
            outcomes.append(Outcome(probability, length, following))
        longer_failed *= 1.0 - passes[length]
    return outcomes


def pass_probability(reach: float, surplus: float) -> float:
    """Probability that a length below k passes: surplus / (surplus + 1 - reach).

    The denominator equals the sum of max(draft - reach * target, 0), but needs no second sum and
    cannot vanish by rounding while reach < 1. At reach = 1 the quotient is 1, and 0 / 0 where the
    rows are equal; then the next length passes as surely, so its value is free, and is 1 too.
    """
    return 1.0 if reach == 1.0 else surplus / (surplus + (1.0 - reach))
