"""A circuit breaker: a server that keeps failing is left alone, for longer each time."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Breaker"]


class Breaker:
    """Whether one server may be called.

    Closed, it lets calls through; after `failures` failures in a row it opens. Open, it refuses
    all, at no cost. When its time is over it is half open: one caller may probe, and all others are
    refused until the probe has ended. A good probe closes it on probation, where the first failure
    opens it again; a bad one opens it for twice as long as before.

    Args:
        name: of the server, for messages.
        failures: in a row, that open it.
        first_s: seconds that it is open at first.
        longest_s: seconds that it is open at most.
        clock: in seconds.

    Attributes:
        failed_in_row: calls that failed since the last one that did not.
    """

    def __init__(
        self,
        name: str,
        *,
        failures: int = 3,
        first_s: float = 0.5,
        longest_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._limit = failures
        self._first_s = self._wait_s = first_s
        self._longest_s = longest_s
        self._clock = clock
        self._open_until: float | None = None
        self._busy_until = 0.0
        self._probing = False
        self._probation = False
        self.failed_in_row = 0

    def refusal(self) -> str | None:
        """Why no call may go out now, in a line; None if one may."""
        now = self._clock()
        if self._open_until is not None:
            left_s = max(self._open_until - now, 0.0)
            return f"draft server {self._name} is cut off for {left_s:.1f} s"
        if now < self._busy_until:
            return f"draft server {self._name} is busy for {self._busy_until - now:.1f} s"
        return None

    def succeeded(self) -> None:
        """A call went well."""
        if self._open_until is None:  # else it was under way when the breaker opened
            self.failed_in_row = 0
            self._probation = False
            self._wait_s = self._first_s

    def failed(self) -> None:
        """A call failed, by fault of the server."""
        if self._open_until is not None:
            return
        self.failed_in_row += 1
        if self._probation or self.failed_in_row >= self._limit:
            self.trip()

    def busy(self, seconds: float) -> None:
        """The server wants to be left alone for a while; that is no failure."""
        self._busy_until = self._clock() + min(max(seconds, 0.0), self._longest_s)

    def trip(self) -> None:
        """Open, whatever happened before."""
        self._open_until = self._clock() + self._wait_s
        self._wait_s = min(2 * self._wait_s, self._longest_s)
        self._probation = False

    def begin_probe(self) -> bool:
        """Whether the caller is to probe the server now, and tell `end_probe` how it went."""
        if self._open_until is None or self._probing or self._clock() < self._open_until:
            return False
        self._probing = True
        return True

    def end_probe(self, *, good: bool) -> None:
        """The probe has ended."""
        self._probing = False
        if not good:
            self.trip()
            return
        self._open_until = None
        self._probation = True
        self.failed_in_row = 0
