"""The round loop: draft, verify, commit, until the output ends."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace

import structlog

from outrider.config import Settings
from outrider.control import Fleet, LookaheadController, create_controller
from outrider.drafters import PREDICTION, CachingDrafter, Drafter, PredictionDrafter
from outrider.errors import Overloaded, RequestError, SessionLost, TargetFailed
from outrider.metrics import Metrics
from outrider.pipeline.asking import Asker
from outrider.pipeline.checks import check_drafter, check_prompt, check_verification
from outrider.pipeline.drafting import Drafting
from outrider.pipeline.recorder import AcceptanceRecorder
from outrider.pipeline.round_log import RoundLog
from outrider.pipeline.session import Session, SpeculationStats, Step
from outrider.sampling import noise_key, validate
from outrider.targets import CacheUse, NearDraft, Opened, OpenRequest, Target
from outrider.types import (
    Draft,
    DrafterInfo,
    SampledDraft,
    SamplingParams,
    TargetInfo,
    TokenIds,
    Verification,
    VerificationMethod,
)
from outrider.verify import Calibration

__all__ = ["Pipeline"]

_MAX_REOPENINGS = 3
"""Times in a row that a lost session is opened again before the request fails."""

_log = structlog.get_logger("outrider.pipeline")


class Pipeline:
    """Serves sessions over one target, with any of several drafters.

    Args:
        target: the model whose output the caller gets.
        info: what it says of itself.
        drafters: by the names that requests use; the first is the default. May be empty. None is
            for one that runs beside the target, which says so of itself.
        settings: bounds and defaults.
        metrics: where counts go.
        recorder: where acceptance is recorded; None records none. Closed with the pipeline.
    """

    def __init__(
        self,
        target: Target,
        info: TargetInfo,
        drafters: Mapping[str, tuple[Drafter, DrafterInfo] | None],
        settings: Settings,
        metrics: Metrics,
        recorder: AcceptanceRecorder | None = None,
    ) -> None:
        self.info = info
        self.metrics = metrics
        self._target = target
        self._drafters = dict(drafters)
        self._speculation = settings.speculation
        self._recorder = recorder
        self._calibrations = {name: Calibration() for name in self._drafters}
        self._fleets: dict[str | None, Fleet] = {}
        self._releasing: set[asyncio.Task[None]] = set()

    @property
    def drafter_names(self) -> tuple[str, ...]:
        """Names that a request may ask for; the first is the default."""
        return tuple(self._drafters)

    def occupancy(self) -> tuple[int, int]:
        """Sessions that the target holds, and sessions that fit."""
        return self._target.occupancy()

    def cache_use(self) -> CacheUse | None:
        """The target's memory of keys and values; None if only its sessions are bounded."""
        return self._target.cache_use()

    def suffix_cache_bytes(self) -> int | None:
        """Memory of what drafters keep of earlier outputs; None if none of them keeps any."""
        drafters = [made_by[0] for made_by in self._drafters.values() if made_by is not None]
        kept = [each.cache_bytes() for each in drafters if isinstance(each, CachingDrafter)]
        return sum(kept) if kept else None

    def session(
        self,
        prompt_ids: TokenIds,
        sampling: SamplingParams,
        *,
        key: int | None = None,
        choice: int = 0,
        tenant: str = "",
        enabled: bool = True,
        max_lookahead: int | None = None,
        drafter: str | None = None,
        verification: VerificationMethod | None = None,
        prediction: TokenIds = (),
        traced: int = 0,
    ) -> Session:
        """A validated session, not yet open.

        Args:
            prompt_ids: at least one token.
            sampling: see `SamplingParams`.
            key: noise key shared by the copies of one request; None takes it from the seed, or
                draws one.
            choice: index of this copy.
            tenant: whose request it is.
            enabled: False decodes plainly.
            max_lookahead: a tighter bound on the lookahead.
            drafter: name of a drafter; None takes the default.
            verification: matching, token or block; None takes the configured one where it applies.
            prediction: what the output will largely be. Drafted first, and matched, unless a
                drafter is named; the default drafter fills the gaps, if it runs in this process.
            traced: rounds to be told of, from the first on.

        Raises:
            RequestError: a parameter has no meaning here; nothing was started.
        """
        capabilities = self.info.capabilities
        validate(sampling, vocab_size=self.info.vocab_size)
        check_prompt(prompt_ids, sampling, self.info, self._target.cache_use())
        check_drafter(drafter, max_lookahead, self._drafters)
        if sampling.seed is not None and not capabilities.seeds:
            raise RequestError(
                f"seed is {sampling.seed}, but this target cannot honour seeds; leave it out",
                param="seed",
            )
        exact = sampling.greedy or capabilities.sampling
        name = drafter or next(iter(self._drafters), None)
        if not enabled or max_lookahead == 0 or not exact:
            name = None
        made_by = None if name is None else self._drafters[name]
        if name is None or drafter is not None:
            prediction = ()
        if verification is not None:
            check_verification(
                verification,
                sampling,
                None if made_by is None or prediction else made_by[1],
                trusted=self._may_weigh(name),
            )
        preferred = verification or VerificationMethod(self._speculation.verification)
        if not capabilities.ratios:
            preferred = VerificationMethod.MATCHING
        session_id = uuid.uuid4().hex
        return Session(
            opening=OpenRequest(
                session_id=session_id,
                epoch=0,
                prompt_ids=prompt_ids,
                output_ids=(),
                sampling=sampling,
                noise_key=noise_key(sampling.seed) if key is None else key,
                choice=choice,
                tenant=tenant,
                verification=preferred,
                near_draft=None if prediction else self._near_draft(name, max_lookahead),
            ),
            controller=self._controller(PREDICTION if prediction else name, max_lookahead),
            max_draft_tokens=capabilities.max_draft_tokens if made_by or prediction else 0,
            preferred=preferred,
            batch_invariant=capabilities.batch_invariant,
            stats=SpeculationStats(drafter=name),
            prediction=prediction,
            log=self._log_of(session_id, name, traced),
        )

    async def run(self, session: Session) -> AsyncGenerator[Step]:
        """Decode `session` to its end. Closing the generator stops and frees everything, once.

        Raises:
            Overloaded: the target has no room for the session.
            TargetFailed: the target failed; what was yielded so far stands.
        """
        session.started_at = time.perf_counter()
        drafting = self._drafting(session)
        try:
            opened = await self._open(session)
            session.cached_tokens = opened.cached_tokens
            self.metrics.observe_opening(len(session.opening.prompt_ids), opened.cached_tokens)
            while not session.finished:
                plan = drafting.plan()
                if session.log is not None:
                    session.log.planned(session.output_length, plan, session.controller)
                draft, plan = await drafting.propose(plan)
                if session.log is not None:
                    session.log.drafted(plan, draft)
                self.metrics.observe_plan(plan.lookahead, session.stats.drafter)
                async with aclosing(self._advance(session, draft, plan.run)) as answers:
                    async for answer in answers:
                        weighed = isinstance(draft, SampledDraft)
                        step = session.commit(answer, by_ratios=weighed, source=draft.source)
                        if session.log is not None:
                            session.log.answered(answer)
                        drafting.observe(answer)
                        self.metrics.observe_answer(answer, session.stats.drafter, step.elapsed_s)
                        yield step
                if session.log is not None:
                    session.log.ended()
        finally:
            if self._recorder is not None:
                self._recorder.record(session)
            await self._release(session, drafting)

    async def close(self) -> None:
        """Wait for releases under way, then close drafters and target."""
        while self._releasing:
            await asyncio.wait(self._releasing)
        if self._recorder is not None:
            await self._recorder.close()
        for made_by in self._drafters.values():
            if made_by is not None:
                await made_by[0].close()
        await self._target.close()

    async def _open(self, session: Session) -> Opened:
        """Open at the target; what others are giving back just now is waited for."""
        while True:
            releasing = set(self._releasing)
            try:
                return await self._target.open(session.opening)
            except Overloaded:
                if not releasing:
                    raise
            await asyncio.wait(releasing, return_when=asyncio.FIRST_COMPLETED)

    async def _advance(
        self, session: Session, draft: Draft | SampledDraft, run: int
    ) -> AsyncGenerator[Verification]:
        """One round at the target. If the target lost the session, the round ends early and the
        next one goes to a session opened again from what is committed."""
        session.round_id += 1
        answers = self._target.advance(
            session.session_id, session.round_id, session.output_length, draft, run
        )
        try:
            async with aclosing(answers):
                async for answer in answers:
                    yield answer
        except SessionLost as error:
            await self._reopen(session, error)

    async def _reopen(self, session: Session, error: SessionLost) -> None:
        session.reopenings += 1
        if session.reopenings > _MAX_REOPENINGS:
            raise TargetFailed(f"the target keeps losing the session: {error}") from None
        self.metrics.sessions_reopened.inc()
        _log.warning("session_reopened", session=session.session_id, reason=str(error))
        session.opening = replace(
            session.opening, epoch=session.opening.epoch + 1, output_ids=session.output_ids
        )
        await self._target.release(session.session_id)
        await self._open(session)

    async def _release(self, session: Session, drafting: Drafting) -> None:
        """Release target and drafter, even if the caller is cancelled again meanwhile."""

        async def release() -> None:
            try:
                await self._target.release(session.session_id)
            finally:
                await drafting.close()

        task = asyncio.create_task(release())
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)
        await asyncio.shield(task)

    def _near_draft(self, name: str | None, max_lookahead: int | None) -> NearDraft | None:
        """What the target is to draft beside itself; None if nothing."""
        if name is None or self._drafters[name] is not None:
            return None
        most = self._speculation.max_lookahead
        return NearDraft(name, most if max_lookahead is None else min(most, max_lookahead))

    def _controller(self, source: str | None, max_lookahead: int | None) -> LookaheadController:
        """A controller that shares what the sessions of one source of drafts learn."""
        fleet = self._fleets.get(source)
        if fleet is None:
            fleet = self._fleets[source] = Fleet(self._speculation.max_lookahead)
        return create_controller(self._speculation, max_lookahead=max_lookahead, fleet=fleet)

    def _log_of(self, session_id: str, drafter: str | None, traced: int) -> RoundLog | None:
        """What is noted of the rounds of a session; None if nobody wants to know."""
        # Nobody asked for debug lines where nobody set up logs.
        if structlog.is_configured() and _log.is_enabled_for(logging.DEBUG):
            return RoundLog(traced, session_id=session_id)
        recorded = self._recorder is not None and drafter is not None
        return RoundLog(traced) if traced or recorded else None

    def _may_weigh(self, name: str | None) -> bool:
        """Whether this drafter's drafts may be judged by ratios here."""
        tripped = name is not None and self._calibrations[name].tripped
        return self.info.capabilities.ratios and not tripped

    def _drafting(self, session: Session) -> Drafting:
        name = session.stats.drafter
        made_by = None if name is None else self._drafters[name]
        deadline_s = self._speculation.deadline_ms / 1000
        if session.prediction:
            predicting = PredictionDrafter(session.prediction, made_by)
            made_by = predicting, predicting.info
        if name is None or made_by is None:
            return Drafting(session, None, None, deadline_s=deadline_s, metrics=self.metrics)
        drafter, info = made_by
        return Drafting(
            session,
            (Asker(drafter, vocab_size=self.info.vocab_size), info),
            self._calibrations[name],
            deadline_s=deadline_s,
            metrics=self.metrics,
        )
