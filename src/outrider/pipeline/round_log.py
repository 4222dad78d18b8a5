"""What came of the rounds of one session: to be told in its answer, or recorded for replays."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import structlog

from outrider.control import Decision, ExplainingController, LookaheadController, Plan
from outrider.types import Draft, SampledDraft, Verification

__all__ = ["Round", "RoundLog"]

_log = structlog.get_logger("outrider.rounds")


@dataclass(frozen=True, slots=True)
class Round:
    """A question to the target, and what it answered.

    Attributes:
        position: output tokens in front of it.
        lookahead: tokens asked of the drafter.
        drafted, accepted: tokens judged, and tokens confirmed.
        tokens: that the output grew by, those of a run alone included.
        source: who made the draft; empty without one.
        why: why this lookahead; see docs/api.md.
        plain_rate, chosen_rate: tokens per second that were expected at 0, and at the chosen
            lookahead; None if they were not compared.
    """

    position: int
    lookahead: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    source: str = ""
    why: str = ""
    plain_rate: float | None = None
    chosen_rate: float | None = None


@dataclass(frozen=True, slots=True)
class _Judged:
    """A draft behind `position`; `cut`: the drafter said as much as it was asked for."""

    position: int
    drafted: int
    accepted: int
    cut: bool = False


class RoundLog:
    """The rounds of one session. It holds counts alone, no tokens.

    Args:
        most: rounds that are kept to be told of, from the first on.
        session_id: named in the debug log, which every round gets a line of; empty for no lines.

    Attributes:
        rounds: those rounds.
    """

    def __init__(self, most: int, *, session_id: str = "") -> None:
        self._most = most
        self._session_id = session_id
        self._round = Round(0)
        self._kept = False
        self._first = False
        self._cut = False
        self._judged: list[_Judged] = []
        self.rounds: list[Round] = []

    def planned(self, position: int, plan: Plan, controller: LookaheadController) -> None:
        """A round begins, behind so many output tokens."""
        self._round = Round(position, plan.lookahead, why=plan.why)
        self._kept = len(self.rounds) < self._most
        told = self._kept or self._session_id
        if told and not plan.why and isinstance(controller, ExplainingController):
            self._explain(controller.explain())
        if self._kept:
            self.rounds.append(self._round)

    def drafted(self, plan: Plan, draft: Draft | SampledDraft) -> None:
        """What is asked of the target."""
        self._first = True
        self._cut = plan.lookahead > 0 and len(draft) == plan.lookahead
        if plan.lookahead == 0 and self._round.lookahead > 0:  # none was to be had
            self._round = replace(self._round, why=plan.why)
        elif plan.lookahead > 0 and not draft:  # the drafter had nothing to say
            self._judged.append(_Judged(self._round.position, 0, 0))
        self._update(replace(self._round, source=draft.source))

    def answered(self, answer: Verification) -> None:
        """What the target answered, to the question or running on."""
        if answer.drafted:
            cut = self._cut and self._first
            self._judged.append(_Judged(answer.position, answer.drafted, answer.accepted, cut))
        self._first = False
        last = self._round
        self._update(
            replace(
                last,
                drafted=last.drafted + answer.drafted,
                accepted=last.accepted + answer.accepted,
                tokens=last.tokens + len(answer.token_ids),
            )
        )

    def ended(self) -> None:
        """The round is over."""
        if self._session_id:
            _log.debug("round", session=self._session_id, **asdict(self._round))

    def scored(self, position: int, drafted: int, accepted: int) -> None:
        """A draft from beside the critical path, by what was committed in its place."""
        self._judged.append(_Judged(position, drafted, accepted))

    def stretches(self, length: int, most: int) -> list[tuple[list[int], list[int]]]:
        """What is known of acceptance: per position, tokens that hold and tokens drafted.

        Every stretch of positions without a gap is one pair of lists. See docs/simulate.md for what
        is taken to be known.

        Args:
            length: of the output.
            most: tokens that a drafter is asked for at most.
        """
        known: dict[int, tuple[int, int]] = {}
        for judged in sorted(self._judged, key=lambda each: each.position):
            more = judged.cut and judged.accepted < judged.drafted
            for offset in range(judged.accepted + 1):
                drafted = max(most, judged.drafted) if more else judged.drafted - offset
                known[judged.position + offset] = (judged.accepted - offset, drafted)
        found: list[tuple[list[int], list[int]]] = []
        last = -2
        for position in sorted(each for each in known if each < length):
            if position != last + 1:
                found.append(([], []))
            last = position
            for values, value in zip(found[-1], known[position], strict=True):
                values.append(value)
        return found

    def _explain(self, decision: Decision) -> None:
        rates = decision.goodput
        told = decision.lookahead < len(rates)
        self._round = replace(
            self._round,
            why=decision.kind,
            plain_rate=rates[0] if rates else None,
            chosen_rate=rates[decision.lookahead] if told else None,
        )

    def _update(self, latest: Round) -> None:
        self._round = latest
        if self._kept:
            self.rounds[-1] = latest
