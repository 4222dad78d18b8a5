"""The target on this process's engine; it verifies right behind the pass, on its thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from outrider.engine import Feed, Job, Lane, StepInfo
from outrider.errors import OutriderError, SessionLost, TargetFailed
from outrider.sampling.device import sampler_on
from outrider.targets.base import CacheUse, Opened, OpenRequest
from outrider.targets.session import TargetSession
from outrider.types import NO_DRAFT, Draft, SampledDraft, TargetInfo, TokenIds, Verification

__all__ = ["LocalTarget"]


@dataclass(frozen=True, slots=True)
class _Held:
    session: TargetSession
    slot: int


class LocalTarget:
    """Decodes on a lane of the engine.

    Args:
        lane: the model, its cache and its thread. Closed with the target.
        info: what the target says of itself.
    """

    def __init__(self, lane: Lane, info: TargetInfo) -> None:
        self._lane = lane
        self._info = info
        self._sampler = sampler_on(lane.decoder.device)
        self._sessions: dict[str, _Held] = {}

    async def describe(self) -> TargetInfo:
        return self._info

    async def open(self, request: OpenRequest) -> Opened:
        await self.release(request.session_id)
        session = TargetSession(request, self._info.eos_token_ids, self._sampler)
        most = len(request.prompt_ids) + request.sampling.max_tokens
        opening = await self._lane.open(request.prompt_ids, most, request.tenant)
        self._sessions[request.session_id] = _Held(session, opening.slot)
        return Opened(cached_tokens=opening.reused)

    async def advance(
        self,
        session_id: str,
        round_id: int,
        position: int,
        draft: Draft | SampledDraft,
        run: int,
    ) -> AsyncGenerator[Verification]:
        held = self._sessions.get(session_id)
        if held is None:
            raise SessionLost(f"session {session_id} is not open here")
        job = _Advance(self._lane, held, round_id, position, draft, run)
        self._lane.submit(job)
        try:
            while (answer := await job.answers.get()) is not None:
                if isinstance(answer, OutriderError):
                    raise answer
                if isinstance(answer, Exception):
                    raise TargetFailed(f"the engine failed: {answer}") from answer
                yield answer
        finally:
            job.cancel()

    async def logits(self, token_ids: TokenIds, rows: int) -> npt.NDArray[np.float32]:
        # Nothing is taken over from sessions, nor left to them: their tenants are not the caller's.
        opening = await self._lane.open((), len(token_ids), "")
        try:
            job = _Score(opening.slot, token_ids, rows)
            self._lane.submit(job)
            try:
                return await job.scored
            except OutriderError:
                raise
            except Exception as error:
                raise TargetFailed(f"the engine failed: {error}") from error
            finally:
                job.cancel()
        finally:
            await self._lane.close(opening.slot)

    async def release(self, session_id: str) -> None:
        held = self._sessions.pop(session_id, None)
        if held is not None:
            await self._lane.close(held.slot, held.session.tokens)

    async def close(self) -> None:
        await asyncio.to_thread(self._lane.engine.close)
        self._lane.cache.clear()  # the thread that owned it has ended

    def occupancy(self) -> tuple[int, int]:
        return self._lane.num_slots - self._lane.cache.num_free, self._lane.num_slots

    def cache_use(self) -> CacheUse:
        cache = self._lane.cache
        return CacheUse(
            tokens=cache.budget,
            budget_bytes=cache.budget * cache.bytes_per_token,
            used_bytes=cache.bytes_in_use,
            retained_bytes=cache.bytes_retained,
        )


class _Advance(Job):
    """One call of `LocalTarget.advance` on the engine's thread."""

    def __init__(
        self,
        lane: Lane,
        held: _Held,
        round_id: int,
        position: int,
        draft: Draft | SampledDraft,
        run: int,
    ) -> None:
        super().__init__(held.slot)
        self.answers: asyncio.Queue[Verification | Exception | None] = asyncio.Queue()
        self._cache = lane.cache
        self._session = held.session
        self._round = (round_id, position)
        self._draft: Draft | SampledDraft = draft
        self._steps_left = run + 1
        self._begun = False

    def feed(self) -> Feed | None:
        session = self._session
        if not self._begun:
            self._begun = True
            for answer in session.begin(*self._round)[: self._steps_left]:
                self._answer(answer)
        if session.finished or self._steps_left <= 0:
            self.tell(self.answers.put_nowait, None)
            return None
        # The last token is always fed, since its logits are wanted.
        known = min(self._cache.length(self.slot), len(session.tokens) - 1)
        self._cache.truncate(self.slot, known)
        return Feed([*session.tokens[known:], *self._draft.token_ids], len(self._draft) + 1)

    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        answer = self._session.judge(
            self._draft,
            logits,
            step_s=step.seconds,
            batch_size=step.batch_size,
            batch_tokens=step.num_tokens,
        )
        # What was rejected leaves the cache; the token that follows is not in it yet.
        kept = min(self._cache.length(self.slot), len(self._session.tokens) - 1)
        self._cache.truncate(self.slot, kept)
        self._answer(answer)

    def fail(self, error: Exception) -> None:
        self.tell(self.answers.put_nowait, error)

    def _answer(self, answer: Verification) -> None:
        self._steps_left -= 1
        self._draft = NO_DRAFT
        self.tell(self.answers.put_nowait, answer)


class _Score(Job):
    """One call of `LocalTarget.logits` on the engine's thread."""

    def __init__(self, slot: int, token_ids: TokenIds, rows: int) -> None:
        super().__init__(slot)
        self.scored: asyncio.Future[npt.NDArray[np.float32]] = (
            asyncio.get_running_loop().create_future()
        )
        self._feed: Feed | None = Feed(token_ids, rows)

    def feed(self) -> Feed | None:
        feed, self._feed = self._feed, None
        return feed

    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        # The engine may use the memory again.
        self.tell(self._settle, logits.to("cpu", torch.float32, copy=True).numpy(), None)

    def fail(self, error: Exception) -> None:
        self.tell(self._settle, None, error)

    def _settle(self, logits: npt.NDArray[np.float32] | None, error: Exception | None) -> None:
        if self.scored.done():
            return
        if logits is not None:
            self.scored.set_result(logits)
        else:
            self.scored.set_exception(error or TargetFailed("the engine gave no logits"))
