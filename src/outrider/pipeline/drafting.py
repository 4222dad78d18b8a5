"""A session's side of drafting: deadlines, failures, and drafts beside the critical path."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from outrider.control import Plan, RoundOutcome, RoundView
from outrider.drafters import SessionView
from outrider.errors import DraftFailed
from outrider.metrics import Metrics
from outrider.pipeline.asking import Asker
from outrider.pipeline.draws import Draws
from outrider.pipeline.outcomes import Outcomes
from outrider.pipeline.session import Session
from outrider.types import (
    NO_DRAFT,
    Draft,
    DrafterInfo,
    SampledDraft,
    TokenIds,
    Verification,
)
from outrider.verify import Calibration

__all__ = ["Drafting"]

_RUN_ALONE = 16
"""Tokens that the target decodes alone before the drafter is asked again, after a failed draft;
twice as many after each further failure, up to the next number."""

_RUN_ALONE_MAX = 256

_WAIT = 2
"""Tokens that it decodes alone while a draft is still under way; twice as many each time, up to
`_RUN_ALONE`."""

_log = structlog.get_logger("outrider.drafting")


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A draft being made behind `start` tokens; the task gives it with the seconds it took."""

    start: int
    task: asyncio.Task[tuple[Draft, float]]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A draft being made behind tokens that are expected: those being judged, and a guess."""

    expected: TokenIds
    made: _UnderWay

    def came_true(self, session: Session) -> bool:
        tokens = session.tokens
        return (
            not session.finished
            and len(tokens) == self.made.start
            and tuple(tokens[-len(self.expected) :]) == self.expected
        )


class Drafting:
    """Asks the drafter of one session, and copes with whatever it does.

    One draft is made at a time. One that misses its deadline is not stopped: the target runs on
    alone, and when the draft arrives it is scored against what was committed in its place, as a
    shadow draft is. So a draft model that has a long prompt to read gets to the end of it.

    While the target judges a draft, the next one may be made ahead, as if all of that one held and
    the bonus token were what the drafter expects (PEARL, arXiv 2408.11850). If so it turns out, it
    is the next round's draft; else it is discarded.

    Drafts to be judged by ratios may not be dropped: whether a drawn draft is judged must not
    depend on what it drew. So the deadline covers what the drafter does before it draws; then the
    draft is waited for, and offered again until the target has judged it. None is made ahead.

    Args:
        session: whose drafts these are.
        drafter: who drafts, with what it says of itself; None leaves the target alone.
        calibration: whether what this drafter draws fits what it declares, over all sessions.
        deadline_s: seconds that a draft may take, unless the drafter knows better.
        metrics: where failures are counted.
    """

    def __init__(
        self,
        session: Session,
        drafter: tuple[Asker, DrafterInfo] | None,
        calibration: Calibration | None,
        *,
        deadline_s: float,
        metrics: Metrics,
    ) -> None:
        self._session = session
        self._asker = None if drafter is None else drafter[0]
        self._info = None if drafter is None else drafter[1]
        self._calibration = calibration
        self._deadline_s = deadline_s
        self._metrics = metrics
        self._draws = Draws(session, drafter, calibration, metrics)
        self._outcomes = Outcomes(session)
        self._failures = 0
        self._rests_until = 0
        self._waits = 0
        self._under_way: _UnderWay | None = None
        self._ahead: _Ahead | None = None
        self._next: _UnderWay | None = None
        self._discarded: set[asyncio.Task[tuple[Draft, float]]] = set()

    def plan(self) -> Plan:
        """What the next round does."""
        session = self._session
        if self._draws.pending is not None:
            return Plan(lookahead=len(self._draws.pending), why="pending")
        room = self._room()
        if room == 0:
            return Plan(lookahead=0, run=session.remaining - 1, why="no room")
        if session.output_length == 0:
            return Plan(lookahead=0, why="first token")  # which waits for no drafter
        if len(session.tokens) < self._rests_until:
            return self._alone("resting")
        if self._under_way is not None:
            plan, self._waits = self._alone("waiting"), self._waits + 1
            return plan
        self._waits = 0
        can_ahead = self._info is not None and self._info.ahead and not self._draws.method.ratio
        view = RoundView(session.remaining, room, can_ahead, len(session.tokens))
        return self._outcomes.planned(session.controller.choose(view))

    async def propose(self, plan: Plan) -> tuple[Draft | SampledDraft, Plan]:
        """The draft for this round, and the plan, changed to a run alone if none came in time."""
        began = time.perf_counter()
        draft = await self._draft(plan)
        if draft is None:
            draft, plan = NO_DRAFT, self._alone("failed")
        self._outcomes.asked(began)
        return draft, plan

    def observe(self, answer: Verification) -> None:
        """Tell the controller what came of the round, and of a draft beside it that is due."""
        if answer.drafted:
            self._draws.judged()
        if self._asker is not None:
            self._outcomes.observe(answer)
        if self._ahead is not None:
            self._settle(self._ahead)
        self._score()

    async def close(self) -> None:
        """Stop drafting and have the drafter forget the session."""
        ahead = None if self._ahead is None else self._ahead.made
        for made in (self._under_way, self._next, ahead):
            if made is not None:
                self._discard(made)
        self._under_way = self._next = self._ahead = None
        if self._discarded:
            await asyncio.wait(self._discarded)
        if self._asker is not None:
            await self._asker.release(self._session.session_id)

    def _alone(self, why: str) -> Plan:
        """The target runs on alone: while the drafter rests, or a little while if it does not."""
        rest = max(self._rests_until - len(self._session.tokens), 0)
        rest = rest or min(_WAIT << min(self._waits, 8), _RUN_ALONE)
        return Plan(lookahead=0, run=min(rest, self._session.remaining) - 1, why=why)

    async def _draft(self, plan: Plan) -> Draft | SampledDraft | None:
        """What the plan asks for; None if it was not to be had."""
        ready, self._next = self._next, None
        if plan.lookahead == 0:
            if ready is not None:
                self._under_way = ready  # to be scored
            elif plan.shadow and self._under_way is None:
                self._under_way = self._start(plan.shadow)
            return NO_DRAFT
        draft: Draft | SampledDraft | None = self._draws.pending
        if draft is not None:
            return draft
        if self._draws.method.ratio:
            read = await self._in_time(self._start_reading(), 0)
            draft = None if read is None else await self._draw(plan.lookahead)
        else:
            more = plan.lookahead + plan.ahead  # the last is a guess at the bonus token
            draft = await self._in_time(ready or self._start(more), more)
            if draft is not None:
                draft = self._look_ahead(draft, plan)
        if draft is not None:
            self._failures = 0
        return draft

    def _look_ahead(self, draft: Draft, plan: Plan) -> Draft:
        """Start on the draft behind this one; what of this one the target is to judge."""
        room = self._room() - plan.lookahead - 1
        if plan.ahead and len(draft) > plan.lookahead and room > 0:
            expected = draft.token_ids[: plan.lookahead + 1]
            self._ahead = _Ahead(expected, self._start(plan.lookahead + 1, expected))
        return draft.clamp(plan.lookahead)

    def _settle(self, ahead: _Ahead) -> None:
        """Keep the draft made ahead if all that it builds on came true."""
        self._ahead = None
        came_true = ahead.came_true(self._session)
        self._outcomes.made_ahead(came_true)
        if came_true:
            self._next = ahead.made
        else:
            self._discard(ahead.made)

    def _discard(self, made: _UnderWay) -> None:
        task = made.task
        task.cancel()
        self._discarded.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[tuple[Draft, float]]) -> None:
        self._discarded.discard(task)
        if not task.cancelled():
            task.exception()  # seen, so that nobody reports it as never retrieved

    def _room(self) -> int:
        """Tokens that may be drafted now."""
        if self._info is None:
            return 0
        session = self._session
        room = min(session.max_draft_tokens, session.remaining - 1)
        if self._info.context_length is not None:
            room = min(room, self._info.context_length - len(session.tokens))
        return max(room, 0)

    def _start(self, max_tokens: int, guess: TokenIds = ()) -> _UnderWay:
        view = self._session.view(guess)
        most = min(max_tokens, self._room() - len(guess))
        return self._make(view, lambda: self._asked.propose(view, most))

    def _start_reading(self) -> _UnderWay:
        view = self._session.view()

        async def read() -> Draft:
            await self._asked.read(view)
            return NO_DRAFT

        return self._make(view, read)

    def _make(self, view: SessionView, work: Callable[[], Awaitable[Draft]]) -> _UnderWay:
        async def timed() -> tuple[Draft, float]:
            began = time.perf_counter()
            draft = await work()  # begun here: the task may be cancelled before it runs
            return draft, time.perf_counter() - began

        return _UnderWay(view.length + len(view.guess), asyncio.create_task(timed()))

    async def _in_time(self, made: _UnderWay, max_tokens: int) -> Draft | None:
        """What comes before the deadline; what does not stays under way."""
        self._under_way = made
        deadline_s = self._asked.deadline_s(max_tokens, self._deadline_s)
        await asyncio.wait([made.task], timeout=deadline_s)
        if not made.task.done():
            self._record_failure(f"no draft within {deadline_s * 1000:.0f} ms")
            return None
        self._under_way = None
        if (error := made.task.exception()) is not None:
            self._record_failure(str(error))
            return None
        return made.task.result()[0]

    async def _draw(self, max_tokens: int) -> Draft | SampledDraft | None:
        """A draft for ratio verification, however long it takes; None if nothing was drawn."""
        try:
            return await self._draws.draw(min(max_tokens, self._room()))
        except DraftFailed as error:
            self._record_failure(str(error))
            return None

    @property
    def _asked(self) -> Asker:
        assert self._asker is not None  # noqa: S101 # without one there is no room to draft
        return self._asker

    def _record_failure(self, reason: str) -> None:
        rest = min(_RUN_ALONE << min(self._failures, 8), _RUN_ALONE_MAX)
        self._rests_until = len(self._session.tokens) + rest
        self._failures += 1
        self._session.stats.failures += 1
        self._metrics.draft_failures.inc()
        log = _log.warning if self._failures == 1 else _log.info
        log(
            "draft_failed",
            session=self._session.session_id,
            drafter=self._session.stats.drafter,
            reason=reason,
            in_a_row=self._failures,
        )

    def _score(self) -> None:
        """Compare a draft from beside the critical path with what was committed in its place."""
        if self._under_way is None or not self._under_way.task.done():
            return
        start, task = self._under_way.start, self._under_way.task
        if (error := task.exception()) is not None:
            self._under_way = None
            self._record_failure(str(error))
            return
        self._failures = 0
        draft, seconds = task.result()
        guessed = draft.token_ids
        committed = self._session.tokens[start : start + len(guessed)]
        if len(committed) < len(guessed) and not self._session.finished:
            return
        self._under_way = None
        if not committed and (guessed or self._draws.method.ratio):
            return  # the session ended first; or what was under way was but reading
        accepted = 0
        while accepted < len(committed) and committed[accepted] == guessed[accepted]:
            accepted += 1
        if self._session.log is not None:
            position = start - len(self._session.opening.prompt_ids)
            self._session.log.scored(position, len(committed), accepted)
        self._session.controller.observe(
            RoundOutcome(len(committed), accepted, shadow=True, draft_s=seconds, context=start)
        )
