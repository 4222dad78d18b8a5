"""Tokens per round and speed-up of a draft, with intervals over prompts.

Prompts are resampled, the same for all drafts, so that drafts are compared in pairs; for speed-ups
the repeats of the measured times are resampled as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from outrider.train.costs import Costs
from outrider.train.renewal import independent
from outrider.types import VerificationMethod

__all__ = ["Forecast", "Interval", "Tally", "Verdict", "forecast"]

F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_RESAMPLES: Final = 2000
_OUTSIDE: Final = 0.025


class Verdict(StrEnum):
    """What the interval of the predicted speed-up says."""

    PAYS = "pays"
    UNCLEAR = "not shown to pay"
    NEVER = "will not pay"


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, and where it lies with 95% confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """What one draft would do, prompt by prompt: U prompts, lookaheads 0..K.

    The first token of each answer is left out: it comes with the prompt.

    Attributes:
        name: of the draft.
        method: how its drafts are judged.
        tokens: float64 [U].
        by_length: float64 [U, K + 1, K + 1], expected rounds by lookahead and tokens drafted.
        offered, accepted: float64 [U, K + 1, K + 1], see `renewal.Rounds`.
        starts: float64 [U, K + 1], see there.
    """

    name: str
    method: VerificationMethod
    tokens: F64
    by_length: F64
    offered: F64
    accepted: F64
    starts: F64

    @property
    def rounds(self) -> F64:
        """float64 [U, K + 1]."""
        rounds: F64 = self.by_length.sum(axis=2)
        return rounds

    def part(self, chosen: Bools) -> Tally:
        """Of some of the prompts, bool [U]."""
        return replace(
            self,
            tokens=self.tokens[chosen],
            by_length=self.by_length[chosen],
            offered=self.offered[chosen],
            accepted=self.accepted[chosen],
            starts=self.starts[chosen],
        )


class _Resampling:
    """Which prompts and which repeats each resample consists of: the same for every draft.

    Resample 0 is the sample itself.

    Attributes:
        weights: float64 [1 + resamples, U], how often each prompt is in it.
    """

    def __init__(self, tokens: F64, repeats: int) -> None:
        rng = np.random.default_rng(0)
        size = len(tokens)
        drawn = rng.multinomial(size, np.full(size, 1 / size), _RESAMPLES).astype(np.float64)
        drawn[drawn @ tokens == 0] = 1.0  # none of its prompts has a token: it says nothing
        self.weights = np.concatenate([np.ones((1, size)), drawn])
        times = rng.integers(repeats, size=(_RESAMPLES, repeats))
        self._repeats = np.concatenate([np.arange(repeats)[None], times])

    def medians(self, seconds: F64) -> F64:
        """Medians of the repeats in each: [1 + resamples, ...] of [repeats, ...]."""
        medians: F64 = np.median(seconds[self._repeats], axis=1)
        return medians


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """What is expected of one draft.

    Attributes:
        name, method: of the draft.
        tokens_per_round: by lookahead 0..K: the mean acceptance length, as served.
        all_places: by lookahead, the same if rounds began at every place alike.
        independent: by lookahead, the same if tokens were accepted independently of one another.
        acceptance: mean acceptance of a draft's first token, over all places.
        by_place: by lookahead, the acceptance of tokens 1..k of a draft, all before accepted.
        reached: likewise, how many rounds that is the mean of.
        speedup: by lookahead, over plain decoding.
        token_s, round_s: seconds for a drafted token, and for asking for a draft.
        best: the lookahead of the largest speed-up.
        verdict: of the speed-ups from lookahead 1 on.
        against_first: its best speed-up over that of the first draft; None for the first itself.
    """

    name: str
    method: VerificationMethod
    tokens_per_round: tuple[Interval, ...]
    all_places: tuple[float, ...]
    independent: tuple[float, ...]
    acceptance: float
    by_place: tuple[tuple[float, ...], ...]
    reached: tuple[tuple[float, ...], ...]
    speedup: tuple[Interval, ...]
    token_s: float
    round_s: float
    best: int
    verdict: Verdict
    against_first: Interval | None = None


def forecast(tallies: Sequence[Tally], costs: Costs) -> list[Forecast]:
    """What is expected of each draft, in their order.

    Args:
        tallies: over the same prompts, which have tokens.
        costs: measured.
    """
    resampling = _Resampling(tallies[0].tokens, len(costs.target_s))
    found: list[Forecast] = []
    first: F64 | None = None
    for tally in tallies:
        speedups = _speedups(tally, costs, resampling)
        best = 1 + int(np.argmax(speedups[0, 1:]))
        against = None if first is None else _interval(speedups[:, best] / first)
        first = speedups[:, best] if first is None else first
        found.append(_one(tally, costs, resampling.weights, speedups, best, against))
    return found


def _one(
    tally: Tally,
    costs: Costs,
    weights: F64,
    speedups: F64,
    best: int,
    against: Interval | None,
) -> Forecast:
    tokens = weights @ tally.tokens
    per_round = tokens[:, None] / (weights @ tally.rounds)
    starts = tally.starts.sum(axis=0) / tokens[0]
    acceptance = float(starts[1])
    speedup = tuple(_interval(column) for column in speedups.T)
    sizes = range(starts.size)
    offered, accepted = tally.offered.sum(axis=0), tally.accepted.sum(axis=0)
    shares = np.divide(accepted, offered, out=np.zeros_like(accepted), where=offered > 0)
    return Forecast(
        name=tally.name,
        method=tally.method,
        tokens_per_round=tuple(_interval(column) for column in per_round.T),
        all_places=tuple(float(starts[: k + 1].sum()) for k in sizes),
        independent=tuple(independent(acceptance, k) for k in sizes),
        acceptance=acceptance,
        by_place=tuple(tuple(shares[k, 1 : k + 1].tolist()) for k in sizes),
        reached=tuple(tuple(offered[k, 1 : k + 1].tolist()) for k in sizes),
        speedup=speedup,
        token_s=float(np.median(costs.token_s[tally.name])),
        round_s=float(np.median(costs.round_s[tally.name])),
        best=best,
        verdict=_verdict(speedup, best),
        against_first=against,
    )


def _speedups(tally: Tally, costs: Costs, resampling: _Resampling) -> F64:
    """[1 + resamples, K + 1]: seconds of plain decoding over seconds with the draft."""
    step_s = resampling.medians(costs.target_s)
    token_s = resampling.medians(costs.token_s[tally.name])[:, None]
    round_s = resampling.medians(costs.round_s[tally.name])[:, None]
    size = step_s.shape[1]
    rounds = resampling.weights @ tally.by_length.reshape(len(tally.tokens), -1)
    rounds = rounds.reshape(-1, size, size)
    lengths = np.arange(size)
    spent = np.einsum("bkl,bl->bk", rounds, step_s + lengths * token_s)
    spent += rounds.sum(axis=2) * round_s * (lengths > 0)
    plain: F64 = (resampling.weights @ tally.tokens)[:, None] * step_s[:, :1]
    speedups: F64 = plain / spent
    return speedups


def _interval(samples: F64) -> Interval:
    low, high = np.quantile(samples[1:], (_OUTSIDE, 1 - _OUTSIDE))
    return Interval(float(samples[0]), float(low), float(high))


def _verdict(speedup: tuple[Interval, ...], best: int) -> Verdict:
    if all(each.high <= 1 for each in speedup[1:]):
        return Verdict.NEVER
    return Verdict.PAYS if speedup[best].low > 1 else Verdict.UNCLEAR
