"""How likely a drafted token is right, by its position in the draft."""

from __future__ import annotations

import math

__all__ = ["FleetAcceptance", "SessionAcceptance"]

_DECAY = 0.97
_PRIOR_WEIGHT = 8.0
_QUALITY_WEIGHT = 10.0
_FLEET_DECAY = 0.998
_FLEET_PRIOR = 0.6
_FLEET_WEIGHT = 2.0
_EARLY = 8.0
_YOUNG = 64
_RENEWED = 8
_NEGLIGIBLE = 0.01


class FleetAcceptance:
    """What sessions of one drafter saw, position by position: where a new session begins.

    A position counts as reached when all before it were right, and as wrong also where the drafter
    had nothing more to say. Later rounds of a session count for less than its first, so that the
    sessions that speculate longest do not speak for all. A position that nobody reached is taken
    to be like the one before it.

    Args:
        positions: the longest draft.
    """

    def __init__(self, positions: int) -> None:
        self._right = [0.0] * positions
        self._reached = [0.0] * positions
        self._means = [_FLEET_PRIOR] * positions
        self._said = [0.8 * _FLEET_WEIGHT, _FLEET_WEIGHT]
        self._filled = [1.0, 1.0]
        self._stale = 0
        self.judged = 0

    @property
    def positions(self) -> int:
        """The longest draft."""
        return len(self._means)

    @property
    def says(self) -> float:
        """How often the drafter has anything to say."""
        return self._said[0] / self._said[1]

    @property
    def fill(self) -> float:
        """Drafted over asked for, where anything was drafted."""
        return self._filled[0] / self._filled[1]

    def means(self) -> list[float]:
        """Per position: right, if all before it were."""
        if self._stale >= (1 if self.judged < _YOUNG else _RENEWED):
            self._stale = 0
            before, means = _FLEET_PRIOR, []
            for right, reached in zip(self._right, self._reached, strict=True):
                before = (_FLEET_WEIGHT * before + right) / (_FLEET_WEIGHT + reached)
                means.append(before)
            self._means = means
        return self._means

    def add(self, reached: int, accepted: int, rounds: int) -> None:
        """Take in a draft; see `SessionAcceptance.observe`. `rounds`: of its session before it."""
        weight = 1 / (1 + rounds / _EARLY)
        keep = 1 - (1 - _FLEET_DECAY) * weight
        for position in range(reached):
            self._reached[position] = self._reached[position] * keep + weight
            won = weight if position < accepted else 0.0
            self._right[position] = self._right[position] * keep + won
        self.judged += 1
        self._stale += 1

    def add_length(self, drafted: int, asked: int) -> None:
        """Take in how much of what was asked for the drafter said."""
        self._said = [_FLEET_DECAY * each for each in self._said]
        self._said[1] += 1
        if drafted:
            self._said[0] += 1
            self._filled = [_FLEET_DECAY * each for each in self._filled]
            self._filled[0] += drafted / asked
            self._filled[1] += 1


class SessionAcceptance:
    """Discounted Beta estimates of one session, which start from the fleet's.

    How much better or worse than the fleet the session fares over all positions together shifts
    the start of every position, so that a position which was not reached lately follows those that
    were.

    Args:
        fleet: what a new session begins with.
    """

    def __init__(self, fleet: FleetAcceptance) -> None:
        self._fleet = fleet
        self._right = [0.0] * fleet.positions
        self._reached = [0.0] * fleet.positions
        self._totals = (0.0, 0.0, 0.0)
        self._said = [0.0, 0.0]
        self.rounds = 0

    @property
    def says(self) -> float:
        """How often the drafter has anything to say to this session."""
        right, total = self._said
        return (_PRIOR_WEIGHT * self._fleet.says + right) / (_PRIOR_WEIGHT + total)

    def observe(self, drafted: int, accepted: int, asked: int) -> None:
        """Learn from a draft.

        Args:
            drafted: tokens of it; 0 if the drafter had nothing to say.
            accepted: how many were right.
            asked: how many were asked for. A draft that ended short of it counts as wrong behind
                its end.
        """
        asked = min(asked, self._fleet.positions)
        accepted = min(accepted, asked)
        reached = min(accepted + 1, asked)
        means = self._fleet.means()
        right, total, expected = self._totals
        self._totals = (
            _DECAY * right + accepted,
            _DECAY * total + reached,
            _DECAY * expected + sum(means[:reached]),
        )
        self._right = [_DECAY * each for each in self._right]
        self._reached = [_DECAY * each for each in self._reached]
        for position in range(reached):
            self._reached[position] += 1
            self._right[position] += position < accepted
        self._said = [_DECAY * self._said[0] + (drafted > 0), _DECAY * self._said[1] + 1]
        self._fleet.add(reached, accepted, self.rounds)
        self._fleet.add_length(min(drafted, asked), asked)
        self.rounds += 1

    def survival(self, positions: int, *, optimism: float = 0.0) -> list[float]:
        """Per position: right, and all before it too. Ends early where next to nothing survives.

        Args:
            positions: at most so many.
            optimism: so many standard deviations better than is likely.
        """
        right, total, expected = self._totals
        odds = 1.0
        if total:
            overall = expected / total
            few, many = _QUALITY_WEIGHT * overall, _QUALITY_WEIGHT * (1 - overall)
            odds = _odds(right + few, total - right + many) / _odds(
                expected + few, total - expected + many
            )
        doubt = optimism / math.sqrt(_PRIOR_WEIGHT + 1 + total)
        survives, survival = 1.0, []
        for mean, held, reached in zip(
            self._fleet.means()[:positions], self._right, self._reached, strict=False
        ):
            shifted = odds * mean / (1 - mean + odds * mean)
            rate = (_PRIOR_WEIGHT * shifted + held) / (_PRIOR_WEIGHT + reached)
            if doubt:
                rate = min(rate + doubt * math.sqrt(rate * (1 - rate)), 1.0)
            survives *= rate
            survival.append(survives)
            if survives < _NEGLIGIBLE:
                break
        return survival


def _odds(right: float, wrong: float) -> float:
    return max(right, 1e-3) / max(wrong, 1e-3)
