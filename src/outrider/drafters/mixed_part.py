"""One of the drafters that are mixed: what it is, how it does, and when it is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from outrider.drafters.base import Drafter, SessionView
from outrider.drafters.odds import DraftTime, Odds
from outrider.drafters.pace import Pace, TimedDrafter
from outrider.types import DrafterInfo

__all__ = ["Part"]

_REST_S: Final = 0.5
_REST_MAX_S: Final = 30.0

_log = structlog.get_logger("outrider.mixed")


class Part:
    """One drafter: what it is, and what is known of it.

    Attributes:
        free: it costs next to nothing.
        failed: its last call did.
    """

    def __init__(
        self,
        drafter: Drafter,
        info: DrafterInfo,
        deadline_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.drafter = drafter
        self.info = info
        self.free = info.vocab_fingerprint is None
        self.odds = Odds()
        self.time = DraftTime()
        self.pace = Pace(deadline_s)
        self.failed = False
        self._clock = clock
        self._failures = 0
        self._rests_until = 0.0

    def room(self, view: SessionView, max_tokens: int) -> int:
        """Tokens that it may draft behind `view`."""
        limit = self.info.context_length
        return max_tokens if limit is None else min(max_tokens, limit - view.length)

    def wait_s(self, max_tokens: int) -> float:
        """Seconds to wait for a draft of so many tokens."""
        if isinstance(self.drafter, TimedDrafter):
            return self.drafter.deadline_s(max_tokens)
        return self.pace.deadline_s(max_tokens)

    def usable(self) -> bool:
        """Whether it may be asked now: one that fails is left alone, longer each time."""
        return self._clock() >= self._rests_until

    def ended(self, error: BaseException | None) -> None:
        """A call has ended, well or not."""
        self.failed = error is not None
        if error is None:
            self._failures = 0
        elif self.usable():  # else it failed for several sessions at once
            self._rests_until = self._clock() + min(_REST_S * 2**self._failures, _REST_MAX_S)
            self._failures += 1
            log = _log.warning if self._failures == 1 else _log.info
            log("part_failed", drafter=self.info.name, reason=f"{type(error).__name__}: {error}")
