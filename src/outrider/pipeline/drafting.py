"""A session's side of drafting: deadlines, failures, and shadow drafts beside the critical path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from outrider.control import Plan, RoundOutcome, RoundView
from outrider.drafters import Drafter, SessionView
from outrider.errors import DraftFailed
from outrider.pipeline.session import Session
from outrider.types import NO_DRAFT, Draft, DrafterInfo

__all__ = ["Drafting"]

_MAX_FAILURES = 3
"""Failures in a row after which a session stops asking its drafter."""

_RECOVERY_RUN = 16
"""Tokens that the target decodes alone after a failed draft, before the drafter is asked again."""

_log = structlog.get_logger("outrider.drafting")


class Drafting:
    """Asks the drafter of one session, and copes with whatever it does.

    Args:
        session: whose drafts these are.
        drafter: who drafts, with what it says of itself; None decodes plainly.
        deadline_s: seconds that a draft may take.
        vocab_size: token ids at or above are illegal.
        on_failure: told of every failed draft.
    """

    def __init__(
        self,
        session: Session,
        drafter: tuple[Drafter, DrafterInfo] | None,
        *,
        deadline_s: float,
        vocab_size: int,
        on_failure: Callable[[], None],
    ) -> None:
        self._session = session
        self._drafter: Drafter | None = drafter[0] if drafter else None
        self._info: DrafterInfo | None = drafter[1] if drafter else None
        self._deadline_s = deadline_s
        self._vocab_size = vocab_size
        self._on_failure = on_failure
        self._failures = 0
        self._shadow: tuple[int, asyncio.Task[Draft]] | None = None

    def plan(self) -> Plan:
        """What the next round does."""
        session = self._session
        room = self._room()
        if self._drafter is None or room == 0:
            return Plan(lookahead=0, run=session.remaining - 1)
        if session.output_length == 0:
            return Plan(
                lookahead=0
            )  # the first token must not wait for a drafter to read the prompt
        return session.controller.choose(
            RoundView(remaining=session.remaining, max_draft_tokens=room)
        )

    async def propose(self, plan: Plan) -> tuple[Draft, Plan]:
        """The draft for this round, and the plan, changed to a run alone if the drafter failed."""
        if plan.lookahead == 0:
            self._start_shadow(plan.shadow)
            return NO_DRAFT, plan
        await self._stop_shadow()
        try:
            draft = await self._ask(self._session.view(), plan.lookahead)
        except DraftFailed as error:
            self._record_failure(error)
            run = min(_RECOVERY_RUN, self._session.remaining) - 1
            return NO_DRAFT, replace(plan, lookahead=0, run=run)
        self._failures = 0
        return draft, plan

    def observe(self, drafted: int, accepted: int) -> None:
        """Tell the controller what came of the round, and score a shadow draft that is due."""
        if drafted:
            self._session.controller.observe(RoundOutcome(drafted, accepted))
        self._score_shadow()

    async def close(self) -> None:
        """Stop drafting and have the drafter forget the session."""
        await self._stop_shadow()
        if self._drafter is not None:
            await self._drafter.release(self._session.session_id)

    def _room(self) -> int:
        """Tokens that may be drafted now."""
        session = self._session
        room = min(session.max_draft_tokens, session.remaining - 1)
        if self._info is not None and self._info.context_length is not None:
            room = min(room, self._info.context_length - len(session.tokens))
        return max(room, 0)

    async def _ask(self, view: SessionView, max_tokens: int) -> Draft:
        """One call of the drafter, with every way in which it can go wrong turned into
        `DraftFailed`.
        """
        if self._drafter is None:
            raise DraftFailed("the session has no drafter")
        try:
            async with asyncio.timeout(self._deadline_s):
                draft = await self._drafter.propose(view, max_tokens)
        except TimeoutError:
            raise DraftFailed(f"no draft within {self._deadline_s * 1000:.0f} ms") from None
        except DraftFailed:
            raise
        except Exception as error:  # a faulty drafter must never cost the caller an answer
            raise DraftFailed(f"{type(error).__name__}: {error}") from error
        for token_id in draft.token_ids:
            if not 0 <= token_id < self._vocab_size:
                raise DraftFailed(f"drafted token id {token_id} lies outside the vocabulary")
        return draft.clamp(max_tokens)

    def _record_failure(self, error: DraftFailed) -> None:
        self._failures += 1
        self._session.stats.failures += 1
        self._on_failure()
        if self._failures >= _MAX_FAILURES:
            self._session.max_draft_tokens = 0
        _log.warning(
            "draft_failed",
            session=self._session.session_id,
            drafter=self._session.stats.drafter,
            reason=str(error),
            given_up=self._failures >= _MAX_FAILURES,
        )

    def _start_shadow(self, max_tokens: int) -> None:
        if max_tokens == 0 or self._shadow is not None:
            return
        view = self._session.view()
        task = asyncio.create_task(self._ask(view, min(max_tokens, self._room())))
        self._shadow = (view.length, task)

    def _score_shadow(self) -> None:
        """Compare a finished shadow draft with what was committed in its place."""
        if self._shadow is None or not self._shadow[1].done():
            return
        start, task = self._shadow
        if (error := task.exception()) is not None:
            self._shadow = None
            if isinstance(error, DraftFailed):
                self._record_failure(error)
            return
        guessed = task.result().token_ids
        committed = self._session.tokens[start : start + len(guessed)]
        if len(committed) < len(guessed) and not self._session.finished:
            return
        self._shadow = None
        accepted = 0
        while accepted < len(committed) and committed[accepted] == guessed[accepted]:
            accepted += 1
        self._session.controller.observe(RoundOutcome(len(committed), accepted, shadow=True))

    async def _stop_shadow(self) -> None:
        if self._shadow is None:
            return
        _, task = self._shadow
        self._shadow = None
        task.cancel()
        await asyncio.wait([task])
