"""What to expect of a source of drafts, learnt from what it did: tokens right, and seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["DraftTime", "Odds", "bucket_of"]

_DECAY: Final = 0.97
"""What an observation still weighs after the next of its kind: about the last 33 count."""

_WEIGHT: Final = 4.0
"""Observations that an estimate from less specific ones is worth."""

_PRIOR: Final = 0.6
"""Taken for the first token of a source that nothing is known of: enough to give it a chance."""

_DEEPEST: Final = 16
"""Positions from here on count as one."""

_LONGEST: Final = 6

_VARIED: Final = 0.1
"""Drafts that vary less in length do not tell what a token costs and what the rest."""


def bucket_of(match: int) -> int:
    """Class of a match of so many tokens: 0, 1, 2 or 3, 4 to 7, 8 to 15, 16 to 31, more."""
    return min(match.bit_length(), _LONGEST)


@dataclass(slots=True)
class _Count:
    right: float = 0.0
    tried: float = 0.0

    def observe(self, right: bool) -> None:
        self.right = _DECAY * self.right + right
        self.tried = _DECAY * self.tried + 1.0

    def rate(self, prior: float) -> float:
        return (self.right + _WEIGHT * prior) / (self.tried + _WEIGHT)


class Odds:
    """How often the tokens of one source are right, given that those before them were.

    Discounted counts by class of match and position, shared by all sessions. Where little is known
    of a class, all classes together tell; where little is known of a position, the one before it.
    """

    def __init__(self) -> None:
        self._pooled: dict[int, _Count] = {}
        self._counts: dict[tuple[int, int], _Count] = {}

    def observe(self, bucket: int, position: int, *, right: bool) -> None:
        """A token at this position of a draft, those before it being right, was right or not."""
        position = min(position, _DEEPEST)
        self._pooled.setdefault(position, _Count()).observe(right)
        self._counts.setdefault((bucket, position), _Count()).observe(right)

    def tried(self, bucket: int) -> float:
        """Drafts of this class that the estimate rests on, discounted."""
        count = self._counts.get((bucket, 0))
        return 0.0 if count is None else count.tried

    def expected(self, bucket: int, max_tokens: int) -> list[float]:
        """Tokens expected to be right in drafts of 0, 1, ..., `max_tokens` tokens."""
        expected, survival = [0.0], 1.0
        pooled = rate = _PRIOR
        for position in range(max_tokens):
            if position <= _DEEPEST:
                pooled = self._pooled.get(position, _NOTHING).rate(pooled)
                # A class that is better or worse than the rest at one position is so at the next.
                prior = pooled if position == 0 else (pooled + rate) / 2
                rate = self._counts.get((bucket, position), _NOTHING).rate(prior)
            survival *= rate
            expected.append(expected[-1] + survival)
        return expected


_NOTHING: Final = _Count()


class DraftTime:
    """Seconds that drafts of a source take: something for each, and something for each token.

    A line through discounted observations.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._tokens = self._seconds = 0.0
        self._tokens_2 = self._product = 0.0

    @property
    def known(self) -> bool:
        """Whether anything was observed."""
        return self._weight > 0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A draft of so many tokens took so long."""
        self._weight = _DECAY * self._weight + 1.0
        self._tokens = _DECAY * self._tokens + num_tokens
        self._seconds = _DECAY * self._seconds + seconds
        self._tokens_2 = _DECAY * self._tokens_2 + num_tokens**2
        self._product = _DECAY * self._product + num_tokens * seconds

    def seconds(self, num_tokens: int) -> float:
        """What a draft of so many tokens is expected to take; 0 while nothing is known."""
        if not self._weight:
            return 0.0
        tokens, seconds = self._tokens / self._weight, self._seconds / self._weight
        variance = self._tokens_2 / self._weight - tokens**2
        # Neither the part for each draft nor that for each token may come out negative.
        slope = most = seconds / max(tokens, 1.0)
        if variance > _VARIED:
            covariance = self._product / self._weight - tokens * seconds
            slope = min(max(covariance / variance, 0.0), most)
        return seconds + slope * (num_tokens - tokens)
