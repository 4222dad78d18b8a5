"""How rounds fall upon a text: where each begins is where the one before ended.

A round that begins at a place accepts j of its drafted tokens, and the target adds one, so the next
begins j + 1 further on. Which places rounds begin at is thus decided by acceptance itself: they are
more often behind a token that the draft had wrong. So the mean over all places is not what is
served; the expected number of rounds is, and is computed exactly, place by place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Rounds", "independent", "walk"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """What is expected of the rounds that make a text, for every lookahead 0..K at once.

    Attributes:
        by_length: float64 [K + 1, K + 1], rounds by lookahead and by tokens drafted.
        offered: float64 [K + 1, K + 1], rounds by lookahead in which token j = 1..K of the draft
            was reached: all before it were accepted. Column 0 holds all rounds.
        accepted: float64 [K + 1, K + 1], those in which it was accepted as well.
        starts: float64 [K + 1], the sum over all places of how likely j tokens would hold there.
    """

    by_length: F64
    offered: F64
    accepted: F64
    starts: F64

    @property
    def total(self) -> F64:
        """Rounds, float64 [K + 1]."""
        total: F64 = self.by_length.sum(axis=1)
        return total


def walk(survival: F64, drafted: I64) -> Rounds:
    """The rounds of one text of n tokens.

    Args:
        survival: float64 [n, K + 1], how likely the first j tokens of a draft of K hold that begins
            at each place.
        drafted: int64 [n], tokens that the drafter has to offer there, at most K.
    """
    n, size = survival.shape
    steps = np.arange(size)
    held = np.where(steps <= drafted[:, None], survival, 0.0)
    after = np.concatenate([held[:, 1:], np.zeros((n, 1))], axis=1)
    # [n, K + 1 lookaheads, K + 1 tokens]: exactly j hold. Of a whole draft nothing more is asked.
    ends = np.where(steps[:, None] > steps, (held - after)[:, None, :], 0.0)
    ends[:, steps, steps] = held
    begun = np.zeros((size, n + size + 1))
    begun[:, 0] = 1.0
    for place in range(n):
        begun[:, place + 1 : place + 1 + size] += begun[:, place, None] * ends[place]
    begun = begun[:, :n]

    lengths = np.minimum(steps[:, None], drafted)  # [K + 1, n]
    by_length = np.zeros((size, size))
    np.add.at(by_length, (steps[:, None].repeat(n, axis=1), lengths), begun)
    allowed = steps <= steps[:, None]  # [lookahead, j]
    accepted = np.where(allowed, begun @ held, 0.0)
    there = (steps <= drafted[:, None]) & (steps <= n - np.arange(n)[:, None])
    reached = np.where(there[:, 1:], held[:, :-1], 0.0)
    offered = np.concatenate([begun.sum(axis=1, keepdims=True), begun @ reached], axis=1)
    return Rounds(by_length, np.where(allowed, offered, 0.0), accepted, survival.sum(axis=0))


def independent(acceptance: float, lookahead: int) -> float:
    """Tokens per round if every token were accepted with the same probability, of its own.

    (1 - a^(k + 1)) / (1 - a) (Leviathan et al., arXiv 2211.17192); real acceptances come in runs.
    """
    return float(np.power(acceptance, np.arange(lookahead + 1)).sum())
