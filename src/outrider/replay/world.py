"""What rounds take in a replay: a cost model, noise on it, and a load that swings."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from outrider.errors import ConfigError

__all__ = ["Clock", "World"]


@dataclass(frozen=True, slots=True)
class World:
    """Costs, in ms. A step takes `base_ms`, and `token_ms` for every token of its batch; the
    defaults were measured by SpecDecode-Bench, with 8B parameters on an H100.

    All sessions of a batch do what the one that is replayed does, so that a round with k drafted
    tokens computes `batch` * (k + 1).

    Attributes:
        rtt_ms: of the trip that every question to the target takes. The further tokens of a run
            alone take none.
        batch: sessions that share a step.
        base_ms: a step's part that does not depend on its tokens.
        token_ms: per token of the batch.
        draft_ms: per drafted token.
        jitter: standard deviation of the logarithm of every time.
        swing: the batch changes between `batch` and a sixteenth of it, every `period_ms`.
        period_ms: see `swing`.
        ahead: the drafter can draft ahead.
        overlap: share of a draft beside the target's step that takes none of its time.
    """

    rtt_ms: float = 0.3
    batch: int = 1
    base_ms: float = 7.1
    token_ms: float = 0.021
    draft_ms: float = 1.0
    jitter: float = 0.0
    swing: bool = False
    period_ms: float = 20_000.0
    ahead: bool = False
    overlap: float = 0.0

    def __post_init__(self) -> None:
        times = (self.rtt_ms, self.base_ms, self.token_ms, self.draft_ms, self.jitter)
        if min(times) < 0 or self.base_ms <= 0 or self.period_ms <= 0 or self.batch < 1:
            raise ConfigError(
                f"{self} has a cost below 0, or none at all; give a step some time, and a batch "
                "of at least 1"
            )

    @property
    def name(self) -> str:
        """How tables call it."""
        parts = [f"RTT {self.rtt_ms:g} ms", f"batch {self.batch}"]
        if self.jitter:
            parts.append(f"jitter {self.jitter:g}")
        if self.swing:
            parts.append("swings")
        if self.ahead:
            parts.append(f"ahead {self.overlap:g}")
        return ", ".join(parts)

    def batch_at(self, now_ms: float) -> int:
        """Sessions that share a step at this time."""
        if self.swing and int(now_ms / self.period_ms) % 2:
            return max(self.batch // 16, 1)
        return self.batch

    def step_ms(self, batch: int, drafted: int) -> float:
        """A step of so many sessions, each with a draft of so many tokens."""
        return self.base_ms + self.token_ms * batch * (drafted + 1)


class Clock:
    """Virtual time, and the noise of one replay; the same seed gives the same noise.

    Args:
        world: how noisy it is.
        seed: of the noise.
    """

    def __init__(self, world: World, seed: int = 0) -> None:
        self._sigma = world.jitter
        self._random = random.Random(seed)  # noqa: S311 # noise of a simulation, no secret
        self.now_ms = 0.0

    def noisy(self, milliseconds: float) -> float:
        """The time with its noise, which leaves the mean as it is."""
        if self._sigma == 0:
            return milliseconds
        return milliseconds * math.exp(
            self._random.gauss(-self._sigma * self._sigma / 2, self._sigma)
        )
