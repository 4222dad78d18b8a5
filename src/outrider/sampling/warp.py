"""From logits to the distribution that is sampled: temperature, min-p, top-k, top-p.

Large rows of float32 are screened as they are; only what is kept, or looked up, is computed in
float64. Ties are ordered by lowest token id everywhere, so the kept set is a function of the logits
alone.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import numpy.typing as npt

from outrider.errors import TargetFailed
from outrider.sampling.select import block_maxima, nucleus, top_k
from outrider.types import SamplingParams

__all__ = ["Support", "check_top", "truncate", "warp"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Values = npt.NDArray[np.floating]

_SMALL = 4096
"""Rows of up to so many entries are computed in float64 throughout."""


class Support:
    """A processed distribution: the tokens that may be sampled, and how likely they are.

    Probabilities are proportional to exp((logit - top) / temperature).

    Args:
        token_ids: int64, shape [m], ascending; None for the whole vocabulary, in order of id.
        logits: shape [m].
        top: the largest of them.
        temperature: above 0.
    """

    def __init__(
        self, token_ids: I64 | None, logits: Values, top: float, temperature: float
    ) -> None:
        self.token_ids = token_ids
        self.logits = logits
        self.top = top
        self.temperature = temperature

    @property
    def size(self) -> int:
        """Tokens that may be sampled."""
        return int(self.logits.size)

    @property
    def ids(self) -> I64:
        """The tokens themselves, int64 of shape [m]."""
        return np.arange(self.size) if self.token_ids is None else self.token_ids

    def keep(self, indices: I64) -> Support:
        """The distribution on these of its tokens alone, by index, ascending."""
        ids = indices if self.token_ids is None else self.token_ids[indices]
        return Support(ids, self.logits[indices], self.top, self.temperature)

    def largest(self, count: int) -> I64:
        """Indices of the `count` likeliest tokens, ascending, the lowest of equals first."""
        return top_k(self.logits, count, self.block_maxima)

    def head(self, size: int) -> Support:
        """The distribution on the `size` likeliest tokens alone."""
        return self if size >= self.size else self.keep(self.largest(size))

    def log_weights(self) -> F64:
        """Log probabilities up to one additive constant, float64 of shape [m]."""
        return self._scaled(self.logits)

    def weights(self, within: int = 0) -> Values:
        """Probabilities up to one factor, shape [m]; float32 only of large float32 rows.

        Args:
            within: size of the row whose weights these shall equal, if they are some of them.
        """
        if self.logits.dtype == np.float32 and max(self.size, within) > _SMALL:
            with np.errstate(over="ignore"):
                scaled = self.logits - np.float32(self.top)
                if self.temperature != 1.0:
                    scaled *= np.float32(1.0 / max(self.temperature, 1e-30))
            np.exp(scaled, out=scaled)
            return scaled
        weights: Values = np.exp(self.log_weights())
        return weights

    @cached_property
    def block_maxima(self) -> Values:
        """See `select.block_maxima`."""
        return block_maxima(self.logits)

    @cached_property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self.weights().sum(dtype=np.float64))

    def probs(self) -> F64:
        """Probabilities, float64 of shape [m], summing to 1."""
        return self.weights() / np.float64(self.total)

    def probs_at(self, token_ids: I64) -> F64:
        """Probabilities of these tokens, float64 of shape [s]; 0 outside the support."""
        places, found = self._places(token_ids)
        probs: F64 = np.exp(self._scaled(self.logits[places])) / self.total
        return np.where(found, probs, 0.0)

    def log_probs_at(self, token_ids: I64) -> F64:
        """Natural logarithms of `probs_at`; -inf outside the support."""
        places, found = self._places(token_ids)
        log_probs: F64 = self._scaled(self.logits[places]) - np.log(self.total)
        return np.where(found, log_probs, -np.inf)

    def dense(self, vocab_size: int) -> F64:
        """Probabilities over the whole vocabulary, float64 of shape [vocab_size]."""
        probs = np.zeros(vocab_size)
        probs[self.ids] = self.probs()
        return probs

    def _places(self, token_ids: I64) -> tuple[I64, npt.NDArray[np.bool_]]:
        """Where in the support these ids lie, and which of them really do."""
        if self.token_ids is None:
            return np.minimum(token_ids, self.size - 1), token_ids < self.size
        places = np.minimum(np.searchsorted(self.token_ids, token_ids), self.size - 1)
        return places, self.token_ids[places] == token_ids

    def _scaled(self, logits: Values) -> F64:
        with np.errstate(over="ignore"):  # to -inf, near temperature 0, where it belongs
            scaled: F64 = (logits.astype(np.float64) - self.top) / self.temperature
        return scaled


def warp(logits: Values, params: SamplingParams) -> Support:
    """The processed distribution of one row.

    Args:
        logits: shape [V]; -inf excludes a token.
        params: `temperature`, `min_p`, `top_k` and `top_p`. Temperature 0 keeps the argmax alone.

    Raises:
        TargetFailed: the row has a NaN, +inf, or no finite entry.
    """
    if params.greedy:
        best = int(np.argmax(logits))  # the first of equals; a NaN counts as the largest
        check_top(float(logits[best]))
        return Support(np.array([best]), logits[best : best + 1], float(logits[best]), 1.0)
    support = Support(None, logits, np.nan, params.temperature)
    support.top = float(support.block_maxima.max())  # a NaN here as well
    check_top(support.top)
    return truncate(support, params)


def check_top(top: float) -> None:
    """Raise `TargetFailed` if this cannot be the best logit of a row."""
    if not math.isfinite(top):
        raise TargetFailed(f"the model's best logit is {top}; its weights are broken")


def truncate(support: Support, params: SamplingParams) -> Support:
    """What `min_p`, `top_k` and `top_p` leave of a distribution."""
    if params.min_p > 0:
        support = _min_p(support, params.min_p)
    if 0 < params.top_k < support.size:
        support = support.keep(support.largest(params.top_k))
    if params.top_p < 1:
        weights = support.weights()
        total = float(weights.sum(dtype=np.float64))
        support = support.keep(nucleus(weights, total, params.top_p))
    return support


def _min_p(support: Support, min_p: float) -> Support:
    """Keep the tokens that are at least `min_p` times as likely as the likeliest."""
    floor = support.top + support.temperature * np.log(min_p)
    # Float32 logits round; so this keeps a little too much, and the rest is decided in float64.
    near = np.flatnonzero(support.logits >= floor - 1e-5 * max(abs(floor), 1.0))
    kept = support.keep(near)
    return kept.keep(np.flatnonzero(kept.log_weights() >= np.log(min_p)))
