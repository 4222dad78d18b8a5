"""A second, cheaper model as drafter, on the same engine as the target."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
import torch

from outrider.drafters.base import SessionView
from outrider.drafters.picker import Picker, Sampling
from outrider.engine import Feed, Job, Lane, StepInfo
from outrider.errors import DraftFailed, Overloaded, RequestError
from outrider.sampling import History
from outrider.sampling.device import sampler_on
from outrider.types import NO_DRAFT, Draft, DrafterInfo, SampledDraft

__all__ = ["ModelDrafter"]

_UNREAD = 32
"""Tokens that a draft reads along the way; more are read in advance where drafts are drawn."""


class ModelDrafter:
    """Decodes drafts on a lane of the engine.

    It processes rows as the target does. Drafts to be matched are sampled with the session's own
    noise, greedily at temperature 0; drafts to be judged by ratios are drawn at random.

    Args:
        lane: the draft model, its cache and its thread.
        info: what the drafter says of itself.
        vocab_size: of the target; ids at or above are padding and never drafted.
        eos_token_ids: of the target.
    """

    def __init__(
        self, lane: Lane, info: DrafterInfo, *, vocab_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        self._lane = lane
        self._info = info
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._sampler = sampler_on(lane.decoder.device)
        self._rng = np.random.default_rng()
        self._sessions: dict[str, _Held] = {}

    async def describe(self) -> DrafterInfo:
        return self._info

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        draft = await self._draft(view, max_tokens, None)
        return Draft(draft.token_ids, self._info.name)

    async def prepare(self, view: SessionView) -> None:
        held = await self._hold(view)
        if view.length - held.read > _UNREAD:
            await self._run(_Read(self._lane, held, view))

    async def draw(self, view: SessionView, max_tokens: int) -> Draft | SampledDraft:
        return await self._draft(view, max_tokens, self._rng)

    async def release(self, session_id: str) -> None:
        held = self._sessions.pop(session_id, None)
        if held is not None:
            await self._lane.close(held.slot, held.history.tokens)

    async def close(self) -> None:
        """Free all slots, and what is kept. The lane's thread is closed by whoever started it."""
        for session_id in list(self._sessions):
            await self.release(session_id)
        await self._lane.forget()

    async def _draft(
        self, view: SessionView, max_tokens: int, rng: np.random.Generator | None
    ) -> Draft | SampledDraft:
        if max_tokens < 1:
            return NO_DRAFT
        held = await self._hold(view)
        # A guess is no part of what the session was promised room for.
        max_tokens = min(max_tokens, held.most - view.length - len(view.guess))
        if max_tokens < 1:
            return NO_DRAFT
        picker = Picker(held.sampling, rng)
        job = _Propose(self._lane, held, view, max_tokens, self._vocab_size, picker)
        await self._run(job)
        return picker.draft(self._info.name)

    async def _hold(self, view: SessionView) -> _Held:
        held = self._sessions.get(view.session_id)
        if held is None:
            sampling = Sampling(view, self._eos_token_ids, self._sampler)
            prompt_ids = view.tokens[: view.prompt_length]
            history = History(prompt_ids)
            most = min(view.prompt_length + view.sampling.max_tokens, self._lane.cache.max_length)
            try:
                opening = await self._lane.open(prompt_ids, most, view.tenant)
            except (Overloaded, RequestError) as error:
                raise DraftFailed(f"{self._info.name}: {error}") from error
            held = _Held(opening.slot, sampling, history, most, read=opening.reused)
            self._sessions[view.session_id] = held
        return held

    async def _run(self, job: _DraftJob) -> None:
        self._lane.submit(job)
        try:
            await job.done
        finally:
            job.cancel()
        job.held.read = job.view.length


@dataclass(slots=True)
class _Held:
    """What is known of a session.

    Attributes:
        slot: of the cache, which holds a part of the history from its start.
        sampling: how its drafts are sampled.
        history: the committed tokens that were seen, and what was guessed or drafted behind them.
        most: tokens that the session may come to.
        committed: how many of them were committed when it was last caught up; 0 at first.
        read: tokens that the model has surely gone through; more than these if a job failed.
    """

    slot: int
    sampling: Sampling
    history: History
    most: int
    committed: int = 0
    read: int = 0


class _DraftJob(Job):
    """Work on the engine's thread for one session; `done` tells the end, or why it failed."""

    def __init__(self, lane: Lane, held: _Held, view: SessionView) -> None:
        super().__init__(held.slot)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cache = lane.cache
        self.held = held
        self.view = view

    def fail(self, error: Exception) -> None:
        self.tell(self._settle, DraftFailed(f"{type(error).__name__}: {error}"))

    def _catch_up(self) -> int:
        """Take over what is committed and guessed; how much, less the last token, the cache holds.

        Only tokens that are new since the last time are compared.
        """
        held, view = self.held, self.view
        history = held.history
        start = min(held.committed, view.length)
        new = (*view.tokens[start : view.length], *view.guess)
        same = 0
        for known, token_id in zip(history.tokens[start:], new, strict=False):
            if known != token_id:
                break
            same += 1
        history.truncate(start + same)
        history.extend(new[same:])
        held.committed = view.length
        cached = min(start + same, len(history) - 1, self._cache.length(self.slot))
        self._cache.truncate(self.slot, cached)
        return cached

    def _settle(self, error: DraftFailed | None = None) -> None:
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)


class _Read(_DraftJob):
    """Read what is committed, up to the last token."""

    _begun = False

    def feed(self) -> Feed | None:
        if not self._begun:
            self._begun = True
            cached, last = self._catch_up(), self.view.length - 1
            if cached < last:
                return Feed(self.view.tokens[cached:last], 0)
        self.tell(self._settle)
        return None

    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        """No logits were asked for."""


class _Propose(_DraftJob):
    """Decode one draft."""

    def __init__(
        self,
        lane: Lane,
        held: _Held,
        view: SessionView,
        max_tokens: int,
        vocab_size: int,
        picker: Picker,
    ) -> None:
        super().__init__(lane, held, view)
        self._max_tokens = max_tokens
        self._vocab_size = vocab_size
        self._picker = picker
        self._begun = False

    def feed(self) -> Feed | None:
        if not self._begun:
            self._begun = True
            cached = self._catch_up()
            return Feed(self.held.history.tokens[cached:], 1)
        if self._picker.done(self._max_tokens):
            self.tell(self._settle)
            return None
        return Feed(self.held.history.tokens[-1:], 1)

    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        self._picker.pick(logits[0, : self._vocab_size], self.held.history)

    def fail(self, error: Exception) -> None:
        if len(self._picker) > 0:
            # Whether a further token is drawn may depend on those before it, so what is drawn so
            # far is a draft like any other. To drop it for what it holds would bias the output.
            self.tell(self._settle)
        else:
            super().fail(error)
