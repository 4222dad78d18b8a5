"""A second, cheaper model as drafter, on the same engine as the target."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import torch

from outrider.drafters.base import SessionView
from outrider.engine import Feed, Job, Lane, StepInfo
from outrider.errors import DraftFailed, Overloaded
from outrider.sampling import TokenSampler
from outrider.types import NO_DRAFT, Draft, DrafterInfo, TokenIds

__all__ = ["ModelDrafter"]


class ModelDrafter:
    """Decodes drafts on a lane of the engine.

    It samples as the target does, with the session's own noise: greedily at temperature 0, coupled
    above.

    Args:
        lane: the draft model, its cache and its thread.
        info: what the drafter says of itself.
        vocab_size: of the target; ids at or above are padding and never drafted.
        eos_token_ids: ids after which there is nothing to draft.
    """

    def __init__(
        self, lane: Lane, info: DrafterInfo, *, vocab_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        self._lane = lane
        self._info = info
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._sessions: dict[str, _Held] = {}

    async def describe(self) -> DrafterInfo:
        return self._info

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        if max_tokens < 1:
            return NO_DRAFT
        held = self._sessions.get(view.session_id)
        if held is None:
            try:
                slot = await self._lane.allocate()
            except Overloaded as error:
                raise DraftFailed(f"{self._info.name}: {error}") from None
            held = self._sessions[view.session_id] = _Held(slot)
        job = _Propose(self._lane, held, view, max_tokens, self._vocab_size, self._eos_token_ids)
        self._lane.submit(job)
        try:
            return Draft(await job.drafted, self._info.name)
        finally:
            job.cancel()

    async def release(self, session_id: str) -> None:
        held = self._sessions.pop(session_id, None)
        if held is not None:
            await self._lane.free(held.slot)

    async def close(self) -> None:
        """The lane's thread is closed by whoever started it."""


@dataclass(slots=True)
class _Held:
    """What a session's cache holds: its first `length` tokens, then these drafted ones."""

    slot: int
    length: int = 0
    drafted: list[int] = field(default_factory=list)


class _Propose(Job):
    """One call of `ModelDrafter.propose` on the engine's thread."""

    def __init__(
        self,
        lane: Lane,
        held: _Held,
        view: SessionView,
        max_tokens: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        super().__init__(held.slot)
        self.drafted: asyncio.Future[TokenIds] = asyncio.get_running_loop().create_future()
        self._cache = lane.cache
        self._held = held
        self._view = view
        self._max_tokens = max_tokens
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._sampler = TokenSampler(view.sampling, view.noise_key, view.choice)
        self._begun = False

    def feed(self) -> Feed | None:
        held, view = self._held, self._view
        if not self._begun:
            self._begun = True
            known = self._roll_back()
            return Feed(view.tokens[known : view.length], 1)
        if len(held.drafted) >= self._max_tokens or held.drafted[-1] in self._eos_token_ids:
            self.tell(self._settle, tuple(held.drafted))
            return None
        return Feed(held.drafted[-1:], 1)

    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        row = logits[0, : self._vocab_size].cpu().numpy()
        position = self._view.length + len(self._held.drafted)
        self._held.drafted.append(self._sampler.sample(row, position))

    def fail(self, error: Exception) -> None:
        self.tell(self._settle, (), DraftFailed(f"{type(error).__name__}: {error}"))

    def _roll_back(self) -> int:
        """Keep what the cache rightly holds of the view, less the last token; return how much.

        Only tokens that are new since the last draft are compared.
        """
        held, view = self._held, self._view
        known = held.length
        for drafted in held.drafted:
            if known == view.length or view.tokens[known] != drafted:
                break
            known += 1
        known = min(known, view.length - 1, self._cache.length(self.slot))
        self._cache.truncate(self.slot, known)
        held.length = view.length
        held.drafted = []
        return known

    def _settle(self, tokens: TokenIds, error: DraftFailed | None = None) -> None:
        if self.drafted.done():
            return
        if error is not None:
            self.drafted.set_exception(error)
        else:
            self.drafted.set_result(tokens)
