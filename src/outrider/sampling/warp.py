"""From logits to the distribution that is sampled: temperature, min-p, top-k, top-p.

Ties are ordered by lowest token id everywhere, so the kept set is a function of the logits alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.errors import TargetFailed
from outrider.types import SamplingParams

__all__ = ["Support", "dense_probs", "warp"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Support:
    """The tokens that may be sampled.

    Attributes:
        token_ids: int64, shape [m], ascending.
        log_weights: float64, shape [m]: log probabilities up to one additive constant.
    """

    token_ids: I64
    log_weights: F64

    def probs(self) -> F64:
        """Probabilities of `token_ids`, float64 of shape [m], summing to 1."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        probs: F64 = weights / weights.sum()
        return probs


def warp(logits: npt.NDArray[np.floating], params: SamplingParams) -> Support:
    """The processed distribution of one row.

    Args:
        logits: shape [V]; -inf excludes a token.
        params: `temperature` above 0 (greedy has no distribution worth the name; use argmax),
            `min_p`, `top_k` and `top_p`.

    Raises:
        TargetFailed: the row has a NaN, +inf, or no finite entry.
    """
    scores = logits.astype(np.float64)
    top = scores.max()
    if not np.isfinite(top):
        raise TargetFailed(
            f"the model's logits have {top} as their maximum; its weights are broken"
        )
    with np.errstate(over="ignore"):  # to -inf, near temperature 0, where it belongs
        scores = (scores - top) / params.temperature
    token_ids = np.arange(scores.size, dtype=np.int64)
    if params.min_p > 0:
        kept = scores >= np.log(params.min_p)
        token_ids, scores = token_ids[kept], scores[kept]
    elif np.isneginf(scores.min()):
        kept = ~np.isneginf(scores)
        token_ids, scores = token_ids[kept], scores[kept]
    if 0 < params.top_k < scores.size:
        kept_ids = _top_k(scores, params.top_k)
        token_ids, scores = token_ids[kept_ids], scores[kept_ids]
    if params.top_p < 1:
        kept_ids = _top_p(scores, params.top_p)
        token_ids, scores = token_ids[kept_ids], scores[kept_ids]
    return Support(token_ids, scores)


def dense_probs(logits: npt.NDArray[np.floating], params: SamplingParams) -> F64:
    """The processed distribution of one row over the whole vocabulary, float64 of shape [V].

    Temperature 0 gives the one-hot row of the argmax.
    """
    probs = np.zeros(logits.size)
    if params.greedy:
        probs[int(np.argmax(logits))] = 1.0
    else:
        support = warp(logits, params)
        probs[support.token_ids] = support.probs()
    return probs


def _top_k(scores: F64, k: int) -> I64:
    """Indices of the k largest scores, ascending."""
    threshold = np.partition(scores, scores.size - k)[scores.size - k]
    above = np.flatnonzero(scores > threshold)
    ties = np.flatnonzero(scores == threshold)[: k - above.size]
    return np.sort(np.concatenate([above, ties]))


def _top_p(scores: F64, top_p: float) -> I64:
    """Indices, ascending, of the shortest run of likeliest tokens that holds `top_p` of the mass.

    The nucleus is usually small: candidates are taken in growing slices, and only those are sorted.
    """
    weights = np.exp(scores - scores.max())
    wanted = top_p * weights.sum()
    size = 64
    while size < weights.size:
        threshold = np.partition(weights, weights.size - size)[weights.size - size]
        candidates = np.flatnonzero(weights >= threshold)  # all ties at the threshold are in
        if weights[candidates].sum() >= wanted:
            return _nucleus(weights, candidates, wanted)
        size *= 8
    return _nucleus(weights, np.arange(weights.size), wanted)


def _nucleus(weights: F64, candidates: I64, wanted: float) -> I64:
    order = np.argsort(-weights[candidates], kind="stable")
    mass = np.cumsum(weights[candidates[order]])
    count = min(int(np.searchsorted(mass, wanted)) + 1, candidates.size)
    return np.sort(candidates[order[:count]])
