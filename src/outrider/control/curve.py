"""What something costs as a function of a count of tokens, learned from noisy times."""

from __future__ import annotations

import math
from statistics import median

__all__ = ["Curve", "RobustMean"]

_FIRST = 5
_FLOOR = 0.05
_CLIP = 3.0
_SHARED = 0.7
_RIDGE = 0.25
_BELIEVED = 2.0
_SCEPTICISM = 3.0
_FULL = 20
_PER_OCTAVE = 4
_EXACT = 16


class RobustMean:
    """A discounted mean that no single value moves by much.

    The first five values give their median. Every later one moves the mean by `rate` of its
    distance, cut at three times the usual distance; that grows quickly when all values are far
    off, so a real change is followed within some twenty values.

    Args:
        rate: share of a new value.
    """

    __slots__ = ("_deviation", "_first", "_rate", "count", "value")

    def __init__(self, rate: float = 0.1) -> None:
        self._rate = rate
        self._first: list[float] = []
        self._deviation = 0.0
        self.count = 0
        self.value = 0.0

    @property
    def doubt(self) -> float:
        """How far the mean may well be off."""
        usual = max(self._deviation, _FLOOR * abs(self.value))
        return usual / math.sqrt(min(self.count, _FULL))

    def add(self, value: float) -> float:
        """Take in a value; what it moved the mean by, the first of all apart."""
        self.count += 1
        before = self.value
        if self.count <= _FIRST:
            self._first.append(value)
            self.value = median(self._first)
            self._deviation = median([abs(each - self.value) for each in self._first])
            return 0.0 if self.count == 1 else self.value - before
        usual = max(self._deviation, _FLOOR * abs(before), 1e-9)
        error = value - before
        self._deviation = usual + self._rate * (min(abs(error), 6 * usual) - usual)
        moved = self._rate * max(-_CLIP * usual, min(error, _CLIP * usual))
        self.value = before + moved
        return moved


class _Bin:
    """What was measured at nearly one count of tokens."""

    __slots__ = ("mean", "tokens")

    def __init__(self, tokens: float) -> None:
        self.tokens = tokens
        self.mean = RobustMean()


class Curve:
    """Seconds as a function of tokens, by what was measured there and at neighbours.

    A straight line through all that was measured says what nobody measured; where there are
    measurements, they count for as much more as their noise allows, so that steps of real hardware
    show. When times change as a whole, a part of the change is passed on to where nothing is
    measured just now.

    Args:
        growth: slope by what is known in advance, as a share of the value at 0 tokens; used until
            different counts were measured.
        initial: seconds at 0 tokens before anything was measured.
    """

    def __init__(self, *, growth: float, initial: float) -> None:
        self._growth = growth
        self._bins: dict[int, _Bin] = {}
        self._scale = 1.0
        self._seen = 0
        self._line = (initial, initial * growth)
        self._table: dict[int, float] = {}

    @property
    def measured(self) -> bool:
        """Whether anything was."""
        return self._seen > 0

    def add(self, tokens: int, seconds: float) -> None:
        """Take in a time; anything below 0 counts as 0."""
        index = _bin(tokens)
        at = self._bins.get(index)
        if at is None:
            at = self._bins[index] = _Bin(float(tokens))
        at.tokens += 0.1 * (tokens - at.tokens)
        value = at.mean.value
        moved = at.mean.add(max(seconds, 0.0) / self._scale)
        if at.mean.count > _FIRST and value > 0:
            change = 1 + _SHARED * moved / value
            self._scale *= change
            at.mean.value /= change
        self._seen += 1
        # A fresh bin says much, one that was measured often hardly more: the rest waits.
        if at.mean.count <= _FIRST or self._seen % 8 == 0:
            self._fit()

    def at(self, tokens: int) -> float:
        """Seconds for so many tokens; never below 0."""
        known = self._table.get(tokens)
        if known is None:
            known = self._table[tokens] = self._compute(tokens)
        return known

    def _compute(self, tokens: int) -> float:
        base, slope = self._line
        line = base + slope * tokens
        at = self._bins.get(_bin(tokens))
        if at is None:
            return max(line, 0.0)
        gap = at.mean.value * self._scale + slope * (tokens - at.tokens) - line
        if gap:  # what noise explains as well is no step of the hardware
            doubt = _SCEPTICISM * at.mean.doubt * self._scale
            gap *= at.mean.count / (at.mean.count + _BELIEVED) * gap * gap / (gap * gap + doubt**2)
        return max(line + gap, 0.0)

    def _fit(self) -> None:
        """The line: least squares, its slope drawn towards what is known in advance."""
        self._table.clear()
        weights = [float(min(at.mean.count, _FULL)) for at in self._bins.values()]
        xs = [at.tokens for at in self._bins.values()]
        ys = [at.mean.value * self._scale for at in self._bins.values()]
        total = sum(weights)
        x = sum(w * each for w, each in zip(weights, xs, strict=True)) / total
        y = sum(w * each for w, each in zip(weights, ys, strict=True)) / total
        expected = y * self._growth / (1 + self._growth * x)
        ridge = _RIDGE * (1 + 0.25 * x) ** 2
        xx = sum(w * (each - x) ** 2 for w, each in zip(weights, xs, strict=True))
        xy = sum(
            w * (each - x) * (value - y) for w, each, value in zip(weights, xs, ys, strict=True)
        )
        slope = max((xy + ridge * expected) / (xx + ridge), 0.0)
        self._line = (y - slope * x, slope)


def _bin(tokens: int) -> int:
    if tokens <= _EXACT:
        return tokens
    return _EXACT + 1 + int(_PER_OCTAVE * math.log2(tokens / _EXACT))
