"""The Gumbel race: which token of a distribution wins, with the noise of one place.

The winner is the argmax of log weight plus noise, both float64. Over a whole vocabulary, computing
every score costs milliseconds, nearly all of it for tokens that cannot win. So the race is run
backwards: the score of a few likely tokens is a bound, and by it a token of a block whose best log
weight is `w` can only win with a uniform so large that its noise exceeds `bound - w`. Hashes are
compared with that as integers, and only what passes is scored. The winner is the same to the bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.sampling.noise import counters, counters_of, gumbel, leading_bits_into, stream
from outrider.sampling.select import BLOCK
from outrider.sampling.warp import Support

__all__ = ["winner"]

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
U64 = npt.NDArray[np.uint64]

_LARGE = 16 * BLOCK
"""Supports from this size on are screened."""

_SEEDS = 16
"""Blocks whose likeliest tokens give the bound."""

_STRIDE = 64
"""Blocks hashed at a time: few enough to stay in the processor's cache."""

_MARGIN = 1e-6
"""The bound is lowered by this, relatively, which is far more than its rounding."""


def winner(support: Support, key: int, choice: int, position: int) -> int:
    """The token sampled from `support` at one place; arguments as for `noise.uniforms`.

    The lowest id wins a tie.
    """
    if support.size == 1:
        return int(support.ids[0])
    place = (key, choice, position)
    if support.size < _LARGE:
        return _race(support, place)[0]
    maxima = support.block_maxima
    _, bound = _race(support.keep(_likely(support.logits, maxima)), place)
    bound -= _MARGIN * max(abs(bound), 1.0)
    bars = _bars(Support(None, maxima, support.top, support.temperature).log_weights() - bound)
    return _race(support.keep(_passing(support, bars, stream(*place))), place)[0]


def _race(support: Support, place: tuple[int, int, int]) -> tuple[int, float]:
    """The winner and its score."""
    ids = support.ids
    scores = support.log_weights() + gumbel(*place, ids)
    index = int(np.argmax(scores))
    return int(ids[index]), float(scores[index])


def _likely(logits: npt.NDArray[np.floating], maxima: npt.NDArray[np.floating]) -> I64:
    """Indices of some of the likeliest tokens, the likeliest of all among them, ascending."""
    blocks = np.sort(np.argpartition(maxima, maxima.size - _SEEDS)[maxima.size - _SEEDS :])
    least = maxima[blocks].min()
    indices = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
    indices = indices[indices < logits.size]
    likely: I64 = indices[logits[indices] >= least]
    return likely


def _bars(leads: F64) -> U64:
    """Leading bits of hashes below these cannot win; uint64 of shape [blocks].

    Noise exceeds x where the uniform exceeds exp(-exp(-x)), that is, where the uniform's distance
    from 1 is less than -expm1(-exp(-x)).

    Args:
        leads: shape [blocks], best log weight of each block less the score to be exceeded.
    """
    with np.errstate(over="ignore", under="ignore"):
        distance = -np.expm1(-np.exp(leads)) * (1 + _MARGIN)
    # Of the hashes only the highest 31 bits are compared; a little more covers the rounding here.
    reach = distance * 2.0**64 + 2.0**33 + 2.0**13
    some_fail = reach < 2.0**64
    return np.where(some_fail, ~np.where(some_fail, reach, 0.0).astype(np.uint64), np.uint64(0))


def _passing(support: Support, bars: U64, start: int) -> I64:
    """Indices into `support` whose leading bits reach the bar of their block, ascending."""
    ids = support.token_ids
    steps = counters(support.size) if ids is None else counters_of(ids)
    state = np.empty(_STRIDE * BLOCK, dtype=np.uint64)
    scratch = np.empty_like(state)
    passed = []
    for first in range(0, bars.size, _STRIDE):
        begin = first * BLOCK
        part = steps[begin : begin + state.size]
        hashed = state[: part.size]
        leading_bits_into(hashed, part, start, scratch[: part.size])
        # The lowest bar of the stride leaves few, and only those look for their own.
        few = np.flatnonzero(hashed >= bars[first : first + _STRIDE].min())
        passed.append(begin + few[hashed[few] >= bars[first + few // BLOCK]])
    return np.concatenate(passed)
