"""The figures of the live line: tokens per second, acceptance, and an estimate of the speed-up."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from outrider.types import Verification

__all__ = ["Speed", "SpeedMeter"]

_SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class Speed:
    """Decoding over the last seconds.

    Attributes:
        tokens_per_s: output tokens over the window, all sessions together.
        acceptance: confirmed over drafted tokens; None if nothing was drafted.
        speedup: estimated seconds that plain decoding would have taken, over the seconds taken;
            None if nothing was drafted, or without a measured plain step.
    """

    tokens_per_s: float
    acceptance: float | None
    speedup: float | None


class SpeedMeter:
    """Collects answers and tells the speed of the last `window_s` seconds.

    Plain decoding is estimated from measured steps of one token per session, by the number of
    sessions: each emitted token would have taken one such step.
    """

    def __init__(
        self, *, window_s: float = 10.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._plain_s: dict[int, float] = {}
        self._recent: deque[tuple[float, Verification, float, float | None]] = deque(maxlen=10_000)

    def observe(self, answer: Verification, elapsed_s: float) -> None:
        """Enter one answer, `elapsed_s` seconds after the session's answer before."""
        if answer.drafted == 0 and answer.batch_tokens == answer.batch_size:
            known = self._plain_s.get(answer.batch_size, answer.step_s)
            self._plain_s[answer.batch_size] = known + _SMOOTHING * (answer.step_s - known)
        plain_s = self._plain_step_s(answer.batch_size)
        estimate_s = None if plain_s is None else plain_s * len(answer.token_ids)
        self._recent.append((self._clock(), answer, elapsed_s, estimate_s))

    def speed(self) -> Speed | None:
        """The current figures, or None if nothing was decoded lately."""
        now = self._clock()
        while self._recent and self._recent[0][0] < now - self._window_s:
            self._recent.popleft()
        if not self._recent:
            return None
        first, _, elapsed_s, _ = self._recent[0]
        # The first answer's own interval began before the window's first instant.
        span_s = max(self._recent[-1][0] - first + elapsed_s, 1e-9)
        tokens = sum(len(answer.token_ids) for _, answer, _, _ in self._recent)
        drafted = sum(answer.drafted for _, answer, _, _ in self._recent)
        accepted = sum(answer.accepted for _, answer, _, _ in self._recent)
        judged = [(plain, taken) for _, _, taken, plain in self._recent if plain is not None]
        taken_s = sum(taken for _, taken in judged)
        return Speed(
            tokens_per_s=tokens / span_s,
            acceptance=accepted / drafted if drafted else None,
            speedup=sum(plain for plain, _ in judged) / taken_s if drafted and taken_s else None,
        )

    def forget(self) -> None:
        """Drop the window, but not what plain steps take."""
        self._recent.clear()

    def _plain_step_s(self, batch_size: int) -> float | None:
        """Seconds of a plain step for about so many sessions, or None if none was measured."""
        if not self._plain_s:
            return None
        nearest = min(self._plain_s, key=lambda size: abs(size - batch_size))
        return self._plain_s[nearest]
