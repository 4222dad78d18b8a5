"""What a target that drafts for itself knows of a session."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from outrider.control import LookaheadController, Plan, RoundOutcome, RoundView
from outrider.drafters import SessionView
from outrider.errors import DraftFailed, SessionLost, StaleRound
from outrider.pipeline.asking import Asker
from outrider.targets import OpenRequest
from outrider.types import NO_DRAFT, Draft, TokenIds, Verification

__all__ = ["NearSession", "Timing"]

_MAX_FAILURES: Final = 3
"""Failures in a row after which a session's drafter is not asked any more."""

_log = structlog.get_logger("outrider.near")


@dataclass(slots=True)
class Timing:
    """The clock of one round at the target itself.

    Attributes:
        draft_s: seconds that its draft took.
        planned: the controller is told of the next answer.
        further: the next answer is not the round's first.
        since: when the wait for the next answer began.
    """

    draft_s: float
    planned: bool
    further: bool = False
    since: float = field(default_factory=time.perf_counter)


@dataclass(slots=True, eq=False)
class NearSession:
    """A session with a drafter of its own.

    Attributes:
        request: what was opened.
        asker: has its drafter guess.
        controller: how much it guesses.
        most: longest draft that target and gateway allow; 0 once the drafter failed too often.
        tokens: prompt and output. Only grows; replaced by another list where output is undone.
        round_id, answers: the latest round asked for, and what was answered to it.
        judges: whether the first of these answers judged a draft from elsewhere.
        inner_round_id: the latest round asked of the target itself.
        turns: calls of `advance`; the latest one is the only one that goes on.
        failures: of the drafter, in a row.
        finished: the output has ended.
    """

    request: OpenRequest
    asker: Asker
    controller: LookaheadController
    most: int
    tokens: list[int] = field(init=False)
    round_id: int = -1
    answers: list[Verification] = field(default_factory=list)
    judges: bool = False
    inner_round_id: int = 0
    turns: int = 0
    failures: int = 0
    finished: bool = False

    def __post_init__(self) -> None:
        self.tokens = [*self.request.prompt_ids, *self.request.output_ids]

    @property
    def session_id(self) -> str:
        return self.request.session_id

    @property
    def output_length(self) -> int:
        return len(self.tokens) - len(self.request.prompt_ids)

    async def begin(
        self, round_id: int, position: int, *, judges: bool
    ) -> tuple[Verification, ...]:
        """Start a round, undoing what was decoded beyond `position`.

        Returns:
            The recorded answers if this very round was answered before, else nothing.

        Raises:
            StaleRound, SessionLost: see `Target.advance`.
        """
        if round_id == self.round_id and self.answers:
            return tuple(self.answers)
        if round_id < self.round_id:
            raise StaleRound(f"round {round_id} of {self.session_id} came after {self.round_id}")
        if not 0 <= position <= self.output_length:
            raise SessionLost(
                f"{self.session_id} holds {self.output_length} output tokens, not {position}"
            )
        self.round_id, self.answers, self.judges = round_id, [], judges
        if position < self.output_length:
            self.tokens = self.tokens[: len(self.request.prompt_ids) + position]
            self.finished = False
            await self.asker.release(self.session_id)  # it has seen what is undone
        return ()

    def plan(self, left: int) -> tuple[Plan, bool]:
        """What the next step does, `left` tokens before the round ends.

        Returns:
            The plan, and whether it is the controller's.
        """
        remaining = min(left, self.request.sampling.max_tokens - self.output_length)
        room = min(self.most, remaining - 1)
        if room <= 0:
            return Plan(lookahead=0, run=max(remaining - 1, 0)), False
        if self.output_length == 0:
            return Plan(lookahead=0), False  # the first token waits for no drafter
        view = RoundView(remaining, max_draft_tokens=room, context=len(self.tokens))
        plan = self.controller.choose(view)
        lookahead, shadow = min(plan.lookahead, room), min(plan.shadow, room)
        return replace(plan, lookahead=lookahead, shadow=shadow), True

    async def guess(self, max_tokens: int) -> Draft:
        """What the drafter guesses; nothing if it fails, in whatever way."""
        if max_tokens == 0:
            return NO_DRAFT
        try:
            draft = await self.asker.propose(self._view(), max_tokens)
        except DraftFailed as error:
            self.failures += 1
            given_up = self.failures >= _MAX_FAILURES
            if given_up:
                self.most = 0
            _log.warning(
                "near_draft_failed",
                reason=str(error),
                given_up=given_up,
            )
            return NO_DRAFT
        self.failures = 0
        return draft

    def record(self, answer: Verification, timing: Timing) -> Verification:
        """Take in what the target answered; the same in the name of the round here."""
        now = time.perf_counter()
        # The first token's time is the prompt's, which says nothing about a step.
        if timing.planned and answer.position > 0:
            self.controller.observe(
                RoundOutcome(
                    drafted=answer.drafted,
                    accepted=answer.accepted,
                    draft_s=timing.draft_s,
                    elapsed_s=now - timing.since,
                    step_s=answer.step_s,
                    batch_size=answer.batch_size,
                    batch_tokens=answer.batch_tokens,
                    context=len(self.tokens),
                    further=timing.further,
                )
            )
        timing.since, timing.planned, timing.further, timing.draft_s = now, True, True, 0.0
        told = replace(answer, round_id=self.round_id)
        self.answers.append(told)
        self.tokens.extend(told.token_ids)
        self.finished = told.finish_reason is not None
        return told

    def score(self, before: int, guess: TokenIds, draft_s: float) -> None:
        """Compare a guess from beside the critical path with the output from `before` on."""
        start = len(self.request.prompt_ids) + before
        came = self.tokens[start : start + len(guess)]
        if not came:
            return
        accepted = 0
        while accepted < len(came) and came[accepted] == guess[accepted]:
            accepted += 1
        self.controller.observe(
            RoundOutcome(len(came), accepted, shadow=True, draft_s=draft_s, context=start)
        )

    def _view(self) -> SessionView:
        request = self.request
        return SessionView(
            session_id=request.session_id,
            tokens=self.tokens,
            length=len(self.tokens),
            prompt_length=len(request.prompt_ids),
            sampling=request.sampling,
            noise_key=request.noise_key,
            choice=request.choice,
            tenant=request.tenant,
        )
