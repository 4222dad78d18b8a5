"""Log probabilities of the target at the true prefix: what a caller is told of every token."""

from __future__ import annotations

import numpy as np

from outrider.sampling.warp import Support
from outrider.types import TokenLogprobs

__all__ = ["token_logprobs"]

_NONE = np.empty(0, dtype=np.int64)


def token_logprobs(support: Support, token_id: int, count: int) -> TokenLogprobs:
    """The log probability of `token_id`, and of the `count` likeliest tokens.

    Args:
        support: of the row that the token was sampled from, whatever was drafted there: the
            model's own distribution, or the processed one.
        token_id: the output token.
        count: likeliest tokens wanted; fewer come if the support has fewer of any probability.
    """
    likeliest = support.ids[support.largest(count)] if count else _NONE
    values = support.log_probs_at(likeliest)
    order = np.argsort(-values, kind="stable")
    order = order[np.isfinite(values[order])]
    pairs = zip(likeliest[order].tolist(), values[order].tolist(), strict=True)
    own = float(support.log_probs_at(np.array([token_id]))[0])
    return TokenLogprobs(token_id, own, tuple(pairs))
