"""How long drafts take, and how long it makes sense to wait for one."""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Protocol, runtime_checkable

__all__ = ["Pace", "TimedDrafter"]

_WINDOW: Final = 64
_ENOUGH: Final = 8
"""Drafts that have to be measured before anything is concluded."""

_QUANTILE: Final = 0.95
_FACTOR: Final = 2.0
_LEAST_S: Final = 0.005


@runtime_checkable
class TimedDrafter(Protocol):
    """A drafter that knows how long to wait for it."""

    def deadline_s(self, max_tokens: int) -> float:
        """Seconds after which a draft of so many tokens is no longer to be expected."""
        ...


class Pace:
    """Learns the deadline of drafts from those before: twice what 19 in 20 of them took.

    A draft of more tokens may take longer in proportion. One that was given up counts as twice the
    time that it was given, so that a deadline that has become too tight widens again.

    Args:
        most_s: the deadline is never longer, and it is this until enough is known.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._taken: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._deadlines: dict[int, float] = {}

    def took(self, seconds: float, num_tokens: int) -> None:
        """A draft of up to `num_tokens` came after so many seconds."""
        self._taken.append((seconds, num_tokens))
        self._deadlines.clear()

    def gave_up(self, seconds: float, num_tokens: int) -> None:
        """A draft had not come after so many seconds."""
        self.took(2 * seconds, num_tokens)

    def deadline_s(self, num_tokens: int) -> float:
        """Seconds to wait for a draft of up to `num_tokens`."""
        if len(self._taken) < _ENOUGH:
            return self._most_s
        if num_tokens not in self._deadlines:
            times = sorted(
                seconds * max(num_tokens / max(count, 1), 1.0) for seconds, count in self._taken
            )
            slow = times[math.ceil(_QUANTILE * len(times)) - 1]
            self._deadlines[num_tokens] = min(max(_FACTOR * slow, _LEAST_S), self._most_s)
        return self._deadlines[num_tokens]
