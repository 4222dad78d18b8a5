"""A session's side of drafting: deadlines, failures, and drafts beside the critical path."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from outrider.control import Plan, RoundOutcome, RoundView
from outrider.drafters import DeclaringDrafter, Drafter, SessionView
from outrider.errors import DraftFailed
from outrider.metrics import Metrics
from outrider.pipeline.session import Session
from outrider.types import NO_DRAFT, Draft, DrafterInfo, SampledDraft, VerificationMethod
from outrider.verify import Calibration, choose_method

__all__ = ["Drafting"]

_MAX_FAILURES = 3
"""Failures in a row after which a session stops asking its drafter."""

_RUN_ALONE = 16
"""Tokens that the target decodes alone before the drafter is asked again, after a failed draft or
while one is still under way."""

_log = structlog.get_logger("outrider.drafting")


class Drafting:
    """Asks the drafter of one session, and copes with whatever it does.

    At most one draft is under way. One that misses its deadline is not stopped: the target runs on
    alone, and when the draft arrives it is scored against what was committed in its place, as a
    shadow draft is. So a draft model that has a long prompt to read gets to the end of it.

    Drafts to be judged by ratios may not be dropped: whether a drawn draft is judged must not
    depend on what it drew. So the deadline covers what the drafter does before it draws; then the
    draft is waited for, and offered again until the target has judged it.

    Args:
        session: whose drafts these are.
        drafter: who drafts, with what it says of itself; None decodes plainly.
        calibration: whether what this drafter draws fits what it declares, over all sessions.
        deadline_s: seconds that a draft may take.
        vocab_size: token ids at or above are illegal.
        metrics: where failures are counted.
    """

    def __init__(
        self,
        session: Session,
        drafter: tuple[Drafter, DrafterInfo] | None,
        calibration: Calibration | None,
        *,
        deadline_s: float,
        vocab_size: int,
        metrics: Metrics,
    ) -> None:
        self._session = session
        self._drafter = drafter[0] if drafter else None
        self._info = drafter[1] if drafter else None
        self._calibration = calibration
        self._draws_lost = False
        self._drawn: SampledDraft | None = None
        self._deadline_s = deadline_s
        self._vocab_size = vocab_size
        self._metrics = metrics
        self._failures = 0
        self._under_way: tuple[int, asyncio.Task[Draft]] | None = None

    def plan(self) -> Plan:
        """What the next round does."""
        session = self._session
        if self._drawn is not None:
            return Plan(lookahead=len(self._drawn))
        room = self._room()
        if room == 0:
            return Plan(lookahead=0, run=session.remaining - 1)
        if session.output_length == 0:
            return Plan(lookahead=0)  # the first token waits for no drafter
        if self._under_way is not None:
            return Plan(lookahead=0, run=min(_RUN_ALONE, session.remaining) - 1)
        return session.controller.choose(
            RoundView(remaining=session.remaining, max_draft_tokens=room)
        )

    async def propose(self, plan: Plan) -> tuple[Draft | SampledDraft, Plan]:
        """The draft for this round, and the plan, changed to a run alone if none came in time."""
        if plan.lookahead == 0:
            if plan.shadow and self._under_way is None:
                self._start(plan.shadow)
            return NO_DRAFT, plan
        draft: Draft | SampledDraft | None = self._drawn
        if draft is not None:
            return draft, plan
        if self._method().ratio:
            ready = await self._in_time(self._start_reading())
            draft = None if ready is None else await self._draw(plan.lookahead)
        else:
            draft = await self._in_time(self._start(plan.lookahead))
        if draft is not None:
            self._failures = 0
            return draft, plan
        run = min(_RUN_ALONE, self._session.remaining) - 1
        return NO_DRAFT, replace(plan, lookahead=0, run=run)

    def observe(self, drafted: int, accepted: int) -> None:
        """Tell the controller what came of the round, and of a draft beside it that is due."""
        if drafted:
            self._drawn = None
            self._session.controller.observe(RoundOutcome(drafted, accepted))
        self._score()

    async def close(self) -> None:
        """Stop drafting and have the drafter forget the session."""
        if self._under_way is not None:
            _, task = self._under_way
            self._under_way = None
            task.cancel()
            await asyncio.wait([task])
        if self._drafter is not None:
            await self._drafter.release(self._session.session_id)

    def _room(self) -> int:
        """Tokens that may be drafted now."""
        if self._info is None:
            return 0
        session = self._session
        room = min(session.max_draft_tokens, session.remaining - 1)
        if self._info.context_length is not None:
            room = min(room, self._info.context_length - len(session.tokens))
        return max(room, 0)

    def _method(self) -> VerificationMethod:
        """How the next draft is judged; settled before it is drawn."""
        trusted = self._calibration is None or not self._calibration.tripped
        return choose_method(
            self._session.opening.sampling,
            self._info,
            self._session.preferred,
            trusted=trusted and not self._draws_lost,
        )

    def _start(self, max_tokens: int) -> asyncio.Task[Draft]:
        view = self._session.view()
        task = asyncio.create_task(self._ask(view, min(max_tokens, self._room())))
        self._under_way = (view.length, task)
        return task

    def _start_reading(self) -> asyncio.Task[Draft]:
        view = self._session.view()
        task = asyncio.create_task(self._read(view))
        self._under_way = (view.length, task)
        return task

    async def _in_time(self, task: asyncio.Task[Draft]) -> Draft | None:
        """What the task under way gives before the deadline."""
        await asyncio.wait([task], timeout=self._deadline_s)
        if not task.done():
            self._record_failure(f"no draft within {self._deadline_s * 1000:.0f} ms")
            return None
        self._under_way = None
        if (error := task.exception()) is not None:
            self._record_failure(str(error))
            return None
        return task.result()

    async def _ask(self, view: SessionView, max_tokens: int) -> Draft:
        """One call of the drafter; every way in which it can go wrong becomes `DraftFailed`."""
        assert self._drafter is not None  # noqa: S101 # without one there is no room to draft
        try:
            draft = await self._drafter.propose(view, max_tokens)
        except DraftFailed:
            raise
        except Exception as error:  # a faulty drafter must never cost the caller an answer
            raise DraftFailed(f"{type(error).__name__}: {error}") from error
        for token_id in draft.token_ids:
            if not 0 <= token_id < self._vocab_size:
                raise DraftFailed(f"drafted token id {token_id} lies outside the vocabulary")
        return draft.clamp(max_tokens)

    async def _read(self, view: SessionView) -> Draft:
        """Have the drafter get ready to draw. Draws nothing, so it may come too late."""
        try:
            await self._declaring.prepare(view)
        except DraftFailed:
            raise
        except Exception as error:  # as above
            raise DraftFailed(f"{type(error).__name__}: {error}") from error
        return NO_DRAFT

    async def _draw(self, max_tokens: int) -> Draft | SampledDraft | None:
        """A draft for ratio verification, however long it takes; None if nothing was drawn.

        After a fault that may have lost a drawn draft, the session matches.
        """
        view, most = self._session.view(), min(max_tokens, self._room())
        try:
            draft = await self._declaring.draw(view, most)
            self._check_draft(draft, most)
        except DraftFailed as error:
            self._record_failure(str(error))
            return None
        except Exception as error:  # as above
            self._draws_lost = True
            self._record_failure(f"{type(error).__name__}: {error}")
            return None
        if isinstance(draft, SampledDraft):
            if not self._fits(draft):
                return Draft(draft.token_ids, draft.source)  # to be matched, which is always exact
            self._drawn = draft
        return draft

    def _check_draft(self, draft: Draft | SampledDraft, most: int) -> None:
        """Raise `ValueError` for a drawn draft that is no draft; it may not simply be dropped."""
        if isinstance(draft, SampledDraft) and not (0 < len(draft.rows) == len(draft) <= most):
            raise ValueError(
                f"{len(draft)} tokens with {len(draft.rows)} rows were drawn; at most {most} were "
                "asked for, each with its row"
            )
        if not all(0 <= token_id < self._vocab_size for token_id in draft.token_ids):
            raise ValueError(f"the drafted ids {draft.token_ids} lie outside the vocabulary")

    def _fits(self, draft: SampledDraft) -> bool:
        """Whether what this drafter drew, here and before, fits what it declared."""
        assert self._calibration is not None  # noqa: S101 # every drafter has one
        before = self._calibration.tripped
        self._calibration.observe(draft)
        if self._calibration.tripped and not before:
            self._report_demotion(self._calibration)
        return not self._calibration.tripped

    @property
    def _declaring(self) -> DeclaringDrafter:
        assert isinstance(self._drafter, DeclaringDrafter)  # noqa: S101 # its info says so
        return self._drafter

    def _report_demotion(self, calibration: Calibration) -> None:
        name = self._session.stats.drafter
        self._metrics.drafters_demoted.labels(name).inc()
        _log.error(
            "drafter_demoted",
            drafter=name,
            z=round(calibration.z, 1),
            drafted=calibration.drafted,
            reason="its tokens do not fit the distribution that it declares; from now on its "
            "drafts are matched, which is exact whatever it drafts",
        )

    def _record_failure(self, reason: str) -> None:
        self._failures += 1
        self._session.stats.failures += 1
        self._metrics.draft_failures.inc()
        given_up = self._failures >= _MAX_FAILURES
        if given_up:
            self._session.max_draft_tokens = 0
        _log.warning(
            "draft_failed",
            session=self._session.session_id,
            drafter=self._session.stats.drafter,
            reason=reason,
            given_up=given_up,
        )

    def _score(self) -> None:
        """Compare a draft from beside the critical path with what was committed in its place."""
        if self._under_way is None or not self._under_way[1].done():
            return
        start, task = self._under_way
        if (error := task.exception()) is not None:
            self._under_way = None
            self._record_failure(str(error))
            return
        guessed = task.result().token_ids
        committed = self._session.tokens[start : start + len(guessed)]
        if len(committed) < len(guessed) and not self._session.finished:
            return
        self._under_way = None
        if not committed:
            return
        accepted = 0
        while accepted < len(committed) and committed[accepted] == guessed[accepted]:
            accepted += 1
        self._session.controller.observe(RoundOutcome(len(committed), accepted, shadow=True))
