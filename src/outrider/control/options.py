"""What a session can do in a round, and which of it is best for all."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]

_HYSTERESIS = 0.01


@dataclass(slots=True)
class Options:
    """The choices of a round, by lookahead from 0 on.

    Attributes:
        price: tokens that other sessions lose per second of a longer step.
        tokens: expected of the round.
        seconds: that the session spends on it.
        lost: tokens that other sessions do not get for it.
        ahead: whether `seconds` are those of drafting ahead.
    """

    price: float
    tokens: list[float]
    seconds: list[float]
    lost: list[float]
    ahead: list[bool]

    def best(self, start: int) -> int:
        """The lookahead with the most to gain over `start`, of all sessions together.

        What a second is worth is the session's own rate, which grows with its choice: so the
        choice is repeated with the rate of the one before (Dinkelbach's method).
        """
        for _ in range(3):
            rate = self.tokens[start] / self.seconds[start]
            gains = [
                tokens - rate * seconds - lost
                for tokens, seconds, lost in zip(self.tokens, self.seconds, self.lost, strict=True)
            ]
            best = gains.index(max(gains))
            if best == start:
                break
            start = best
        return start

    def gain(self, lookahead: int, rate: float) -> float:
        """Tokens won by a round against doing something else at `rate` in its time."""
        return self.tokens[lookahead] - rate * self.seconds[lookahead] - self.lost[lookahead]

    def improves(self, best: int, current: int) -> bool:
        """Whether the change is worth making."""
        rate = self.tokens[current] / self.seconds[current]
        won = self.gain(best, rate) - self.gain(current, rate)
        return won > _HYSTERESIS * self.tokens[best]
