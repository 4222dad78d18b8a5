"""What a draft model does on the engine's thread for one session: read, and decode drafts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import torch

from outrider.drafters.base import SessionView
from outrider.drafters.context import Context
from outrider.drafters.picker import Picker, Sampling
from outrider.engine import Feed, Job, Lane, StepInfo
from outrider.errors import DraftFailed, RequestError
from outrider.sampling import History

__all__ = ["DraftJob", "Held", "Propose", "Read"]


@dataclass(slots=True)
class Held:
    """What is known of a session.

    Attributes:
        slot: of the cache, which holds a part of the context from its start.
        sampling: how its drafts are sampled.
        history: the committed tokens that were seen, and what was guessed or drafted behind them.
        context: the same in the model's ids, perhaps without the end.
        most: tokens that the session may come to.
        room: ids that the slot may come to.
        committed: how many of them were committed when it was last caught up; 0 at first.
        read: tokens that the model has surely gone through; more than these if a job failed.
    """

    slot: int
    sampling: Sampling
    history: History
    context: Context
    most: int
    room: int
    committed: int = 0
    read: int = 0


class DraftJob(Job):
    """Work on the engine's thread for one session; `done` tells the end, or why it failed."""

    def __init__(self, lane: Lane, held: Held, view: SessionView) -> None:
        super().__init__(held.slot)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cache = lane.cache
        self.held = held
        self.view = view

    def fail(self, error: Exception) -> None:
        self.tell(self._settle, DraftFailed(f"{type(error).__name__}: {error}"))

    def _catch_up(self) -> int:
        """Take over what is committed and guessed; how much of the context the cache holds.

        The last id is always left to be fed, since its logits are wanted. Only tokens that are new
        since the last time are compared.
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
        known = held.context.keep(start + same)
        held.context.extend()
        size = len(held.context.ids)
        cached = max(min(known, size - 1, self._cache.length(self.slot)), 0)
        self._cache.truncate(self.slot, cached)
        return cached

    def _settle(self, error: DraftFailed | None = None) -> None:
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)


class Read(DraftJob):
    """Read what there is, up to the last id."""

    _begun = False

    def feed(self) -> Feed | None:
        if not self._begun:
            self._begun = True
            cached, ids = self._catch_up(), self.held.context.ids
            if cached < len(ids) - 1 <= self.held.room:
                return Feed(ids[cached:-1], 0)
        self.tell(self._settle)
        return None

    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        """No logits were asked for."""


class Propose(DraftJob):
    """Decode one draft."""

    def __init__(
        self,
        lane: Lane,
        held: Held,
        view: SessionView,
        max_tokens: int,
        row_size: int,
        picker: Picker,
    ) -> None:
        super().__init__(lane, held, view)
        self._max_tokens = max_tokens
        self._row_size = row_size
        self._picker = picker
        self._begun = False
        self._over = False

    def feed(self) -> Feed | None:
        context = self.held.context
        if not self._begun:
            self._begun = True
            cached = self._catch_up()
            self._max_tokens = min(self._max_tokens, self.held.room - len(context.ids))
            if context.ids and self._max_tokens > 0:
                return Feed(context.ids[cached:], 1)
            self._over = True
        if self._over or self._picker.done(self._max_tokens):
            self.tell(self._settle)
            return None
        context.extend()
        return Feed(context.ids[-1:], 1)

    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        try:
            self._picker.pick(logits[0, : self._row_size], self.held.history)
        except RequestError:
            # The constraints leave none of the draft's tokens. That is known before one is drawn,
            # so what was drafted so far is whole.
            self._over = True

    def fail(self, error: Exception) -> None:
        if len(self._picker) > 0:
            # Whether a further token is drawn may depend on those before it, so what is drawn so
            # far is a draft like any other. To drop it for what it holds would bias the output.
            self.tell(self._settle)
        else:
            super().fail(error)
