"""A second, cheaper model as drafter, on the same engine as the target."""

from __future__ import annotations

import numpy as np

from outrider.drafters.base import SessionView
from outrider.drafters.context import Context, PlainContext, TranslatedContext
from outrider.drafters.model_jobs import DraftJob, Held, Propose, Read
from outrider.drafters.picker import DraftSamplerFactory, Picker, Sampling
from outrider.drafters.translated_rows import translated_sampler
from outrider.drafters.translation import Translation
from outrider.engine import Lane
from outrider.errors import DraftFailed, Overloaded, RequestError
from outrider.sampling import History
from outrider.sampling.device import sampler_on
from outrider.types import NO_DRAFT, Draft, DrafterInfo, SampledDraft

__all__ = ["SPREAD", "ModelDrafter"]

_UNREAD = 32
"""Tokens that a draft reads along the way; more are read in advance where drafts are drawn."""

SPREAD = 2
"""Ids that a session is promised room for, for each token that may come, where a token may be
several. Where it is more, drafting ends early."""


class ModelDrafter:
    """Decodes drafts on a lane of the engine.

    It processes rows as the target does. Drafts to be matched are sampled with the session's own
    noise, greedily at temperature 0; drafts to be judged by ratios are drawn at random.

    Args:
        lane: the draft model, its cache and its thread.
        info: what the drafter says of itself.
        vocab_size: of the target; ids at or above are padding and never drafted.
        eos_token_ids: of the target.
        translation: to the ids of the draft model; None if they are the target's.
        min_confidence: where a draft ends; see `ConfidenceStop`.
    """

    def __init__(
        self,
        lane: Lane,
        info: DrafterInfo,
        *,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        translation: Translation | None = None,
        min_confidence: float = 0.0,
    ) -> None:
        self._lane = lane
        self._info = info
        self._eos_token_ids = eos_token_ids
        self._translation = translation
        self._min_confidence = min_confidence
        self._row_size = vocab_size if translation is None else translation.target_ids.size
        device = lane.decoder.device
        self._sampler: DraftSamplerFactory = (
            sampler_on(device)
            if translation is None
            else translated_sampler(translation, vocab_size, device)
        )
        self._rng = np.random.default_rng()
        self._sessions: dict[str, Held] = {}

    async def describe(self) -> DrafterInfo:
        return self._info

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        draft = await self._draft(view, max_tokens, None)
        return Draft(draft.token_ids, self._info.name)

    async def prepare(self, view: SessionView) -> None:
        held = await self._hold(view)
        if view.length - held.read > _UNREAD:
            await self._run(Read(self._lane, held, view))

    async def draw(self, view: SessionView, max_tokens: int) -> Draft | SampledDraft:
        return await self._draft(view, max_tokens, self._rng)

    async def release(self, session_id: str) -> None:
        held = self._sessions.pop(session_id, None)
        if held is not None:
            await self._lane.close(held.slot, held.context.ids)

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
        job = Propose(self._lane, held, view, max_tokens, self._row_size, picker)
        await self._run(job)
        return picker.draft(self._info.name)

    async def _hold(self, view: SessionView) -> Held:
        held = self._sessions.get(view.session_id)
        if held is None:
            sampling = Sampling(
                view, self._eos_token_ids, self._sampler, min_confidence=self._min_confidence
            )
            history = History(view.tokens[: view.prompt_length])
            context = self._context(history)
            size = len(context.ids)
            room = self._room(size, view.sampling.max_tokens)
            try:
                opening = await self._lane.open(context.ids.copy(), room, view.tenant)
            except (Overloaded, RequestError) as error:
                raise DraftFailed(f"{self._info.name}: {error}") from error
            most = view.prompt_length + view.sampling.max_tokens
            held = Held(opening.slot, sampling, history, context, most, room)
            held.read = opening.reused * view.prompt_length // max(size, 1)
            self._sessions[view.session_id] = held
        return held

    def _context(self, history: History) -> Context:
        if self._translation is None:
            return PlainContext(history)
        return TranslatedContext(history, self._translation)

    def _room(self, size: int, max_tokens: int) -> int:
        """Ids to promise a session room for that begins with so many."""
        cache = self._lane.cache
        if self._translation is None:
            return min(size + max_tokens, cache.max_length)
        return min(size + SPREAD * max_tokens, cache.max_length, cache.budget)

    async def _run(self, job: DraftJob) -> None:
        self._lane.submit(job)
        try:
            await job.done
        finally:
            job.cancel()
        job.held.read = job.view.length
