"""Drafting beside the target: no draft travels, and no round waits for one.

While a session runs alone, each step of the target judges what a drafter here guessed, and the
answers hold as many tokens as it confirmed. Drafts are judged by matching, so what comes out is
what the target alone would have said, for every draft.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace

from outrider.config import SpeculationSettings
from outrider.control import Fleet, create_controller
from outrider.drafters import Drafter
from outrider.errors import RequestError, SessionLost, StaleRound
from outrider.pipeline.asking import Asker
from outrider.servers.near_session import NearSession, Timing
from outrider.targets import CacheUse, NearDraft, Opened, OpenRequest, Target
from outrider.types import NO_DRAFT, Draft, SampledDraft, TargetInfo, Verification

__all__ = ["NearDraftingTarget"]


class NearDraftingTarget:
    """A target that drafts for itself, for the sessions that ask for it.

    Args:
        target: judges and decodes. Closed with this one, as the drafters are.
        drafters: by the names that sessions use; none of them needs a model.
        settings: how much is drafted.
    """

    def __init__(
        self, target: Target, drafters: Mapping[str, Drafter], settings: SpeculationSettings
    ) -> None:
        self._target = target
        self._drafters = dict(drafters)
        self._settings = settings
        self._fleets = {name: Fleet(settings.max_lookahead) for name in drafters}
        self._sessions: dict[str, NearSession] = {}

    async def describe(self) -> TargetInfo:
        return replace(await self._target.describe(), drafters=tuple(self._drafters))

    async def open(self, request: OpenRequest) -> Opened:
        await self._forget(request.session_id)
        near = request.near_draft
        if near is not None and near.drafter not in self._drafters:
            raise RequestError(
                f"there is no drafter {near.drafter[:200]!r} beside this target; known are "
                f"{', '.join(self._drafters) or 'none'}",
                param="near_draft",
            )
        opened = await self._target.open(request)
        if near is not None and near.max_lookahead > 0:
            self._sessions[request.session_id] = await self._session(request, near)
        return opened

    def advance(
        self,
        session_id: str,
        round_id: int,
        position: int,
        draft: Draft | SampledDraft,
        run: int,
    ) -> AsyncGenerator[Verification]:
        session = self._sessions.get(session_id)
        if session is None:
            return self._target.advance(session_id, round_id, position, draft, run)
        return self._advance(session, round_id, position, draft, run)

    async def release(self, session_id: str) -> None:
        await self._forget(session_id)
        await self._target.release(session_id)

    async def close(self) -> None:
        self._sessions.clear()
        for drafter in self._drafters.values():
            await drafter.close()
        await self._target.close()

    def occupancy(self) -> tuple[int, int]:
        return self._target.occupancy()

    def cache_use(self) -> CacheUse | None:
        return self._target.cache_use()

    async def _session(self, request: OpenRequest, near: NearDraft) -> NearSession:
        info = await self._target.describe()
        capabilities = info.capabilities
        exact = request.sampling.greedy or capabilities.sampling
        return NearSession(
            request=request,
            asker=Asker(self._drafters[near.drafter], vocab_size=info.vocab_size),
            controller=create_controller(
                self._settings,
                max_lookahead=near.max_lookahead,
                fleet=self._fleets[near.drafter],
            ),
            most=min(near.max_lookahead, capabilities.max_draft_tokens) if exact else 0,
        )

    async def _forget(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            await session.asker.release(session_id)

    async def _advance(
        self,
        session: NearSession,
        round_id: int,
        position: int,
        draft: Draft | SampledDraft,
        run: int,
    ) -> AsyncGenerator[Verification]:
        session.turns += 1
        turn = session.turns
        recorded = await session.begin(round_id, position, judges=len(draft) > 0)
        # A draft from elsewhere has an answer of its own; then come `run` tokens, or one more.
        left = run + (0 if session.judges else 1)
        for index, answer in enumerate(recorded):
            left -= 0 if session.judges and index == 0 else len(answer.token_ids)
            if left < 0:
                return
            yield answer
        if session.judges and not recorded:
            asked = self._ask(session, turn, draft, 0, Timing(0.0, planned=False))
            async with aclosing(asked) as answers:
                async for answer in answers:
                    yield answer
        while left > 0 and not session.finished:
            before = session.output_length
            async with aclosing(self._step(session, turn, left)) as answers:
                async for answer in answers:
                    yield answer
            if session.output_length == before:
                return  # the output had ended before
            left -= session.output_length - before

    async def _step(
        self, session: NearSession, turn: int, left: int
    ) -> AsyncGenerator[Verification]:
        """Have a guess judged, or let the target run on alone; up to `left` tokens."""
        plan, planned = session.plan(left)
        before, began = session.output_length, time.perf_counter()
        guess = await session.guess(plan.lookahead or plan.shadow)
        draft_s = time.perf_counter() - began
        draft = guess if plan.lookahead else NO_DRAFT
        run = min(plan.run, left - 1 - len(draft))
        timing = Timing(draft_s if plan.lookahead else 0.0, planned)
        async with aclosing(self._ask(session, turn, draft, run, timing)) as answers:
            async for answer in answers:
                yield answer
        if not plan.lookahead:
            session.score(before, guess.token_ids, draft_s)

    async def _ask(
        self,
        session: NearSession,
        turn: int,
        draft: Draft | SampledDraft,
        run: int,
        timing: Timing,
    ) -> AsyncGenerator[Verification]:
        """One round of the target itself, recorded and told as part of the round here."""
        self._check_turn(session, turn)
        session.inner_round_id += 1
        answers = self._target.advance(
            session.session_id, session.inner_round_id, session.output_length, draft, run
        )
        async with aclosing(answers):
            async for answer in answers:
                self._check_turn(session, turn)
                yield session.record(answer, timing)

    def _check_turn(self, session: NearSession, turn: int) -> None:
        if self._sessions.get(session.session_id) is not session:
            raise SessionLost(f"session {session.session_id} is not open here")
        if session.turns != turn:
            raise StaleRound(f"a later round of {session.session_id} began")
