"""Lanes and jobs: whatever sequences are ready share the next forward pass of their model."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog
import torch

from outrider.engine.base import Decoder
from outrider.engine.batch import Chunk
from outrider.engine.thread import EngineThread
from outrider.errors import SessionLost, StaleRound, TargetFailed

__all__ = ["Feed", "Job", "Lane", "Opening", "StepInfo"]

_GATHER_SHARE = 0.05
_GATHER_MAX_S = 0.004
"""How long a step waits for sequences of the one before to come back: a share of its own time."""

_SHORT = 32
"""Feeds of up to so many tokens, such as drafts to judge, are never cut."""

_SHARE = 4
"""Beside running sequences, prompts get one part in so many of a step's tokens."""

_log = structlog.get_logger("outrider.engine")


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens to append to a slot (at least one), and how many of the last ones want logits."""

    token_ids: Sequence[int]
    num_logits: int


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One forward pass: seconds it took, sequences that shared it, tokens in it."""

    seconds: float
    batch_size: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Opening:
    """A slot of the cache, and how many tokens it holds already, taken from an earlier sequence."""

    slot: int
    reused: int


class Job(ABC):
    """Work on one slot: tokens in, logits back, until there is no more to feed.

    Made on an event loop; the abstract methods run on the engine's thread. `cancel` may be called
    from any thread; it takes effect before the next step.
    """

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.cancelled = False
        self._loop = asyncio.get_running_loop()

    def cancel(self) -> None:
        """Take no part in any further step, and tell nothing any more."""
        self.cancelled = True

    def tell(self, call: Callable[..., object], *args: object) -> None:
        """Call on the job's event loop, unless nobody waits any more."""
        if self.cancelled:
            return
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed
            self.cancelled = True

    @abstractmethod
    def feed(self) -> Feed | None:
        """What to compute next, or None if the job is done."""

    @abstractmethod
    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        """Logits, float32 of shape [num_logits, V], of the last tokens fed."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """The job is over, and this is why."""


@dataclass(slots=True)
class _Active:
    """A job in a lane, with the part of its feed that is not computed yet."""

    job: Job
    feed: Feed
    done: int = 0

    @property
    def left(self) -> int:
        return len(self.feed.token_ids) - self.done

    @property
    def short(self) -> bool:
        # Rows with logits must come from one pass, so a feed of nothing else cannot be cut.
        return len(self.feed.token_ids) <= max(_SHORT, self.feed.num_logits)

    def chunk(self, count: int) -> Chunk:
        """The next `count` tokens: fewer or more if rows with logits would be cut apart."""
        if self.left <= max(count, self.feed.num_logits):
            count = self.left
        else:
            count = min(count, self.left - self.feed.num_logits)
        ids = self.feed.token_ids[self.done : self.done + count]
        return Chunk(self.job.slot, ids, self.feed.num_logits if count == self.left else 0)


class Lane:
    """One model on the engine's thread: its cache, and the jobs that want its next step.

    Args:
        engine: the thread.
        decoder: the model.
        num_slots: sequences held at a time.
        max_length: longest sequence, in tokens.
        step_tokens: tokens in one pass; see `_select`.
        kv_tokens: tokens whose keys and values are held, of all sequences together; None allows
            every sequence its longest length.
        reuse: whether sequences that have ended are kept for later ones that begin alike.

    Attributes:
        cache: touch it on the engine's thread only; its counts may be read anywhere.
    """

    def __init__(
        self,
        engine: EngineThread,
        decoder: Decoder,
        *,
        num_slots: int,
        max_length: int,
        step_tokens: int,
        kv_tokens: int | None = None,
        reuse: bool = True,
    ) -> None:
        self.engine = engine
        self.decoder = decoder
        self.num_slots = num_slots
        self.cache = decoder.new_cache(num_slots=num_slots, max_length=max_length)
        if kv_tokens is not None:
            self.cache.limit(kv_tokens)
        self._step_tokens = step_tokens
        self._reuse = reuse
        self._active: list[_Active] = []
        self._last = StepInfo(0.0, 0, 0)
        engine.add(self)

    async def open(self, prompt_ids: Sequence[int], most: int, tenant: str) -> Opening:
        """A slot for a sequence; what is known of its beginning is filled in.

        Args:
            prompt_ids: what the sequence begins with; stays as it is while the slot is held.
            most: tokens that the sequence may come to.
            tenant: whose it is; nothing is shared between tenants.

        Raises:
            Overloaded: no slot is free, or the tokens do not fit now.
            ContextLengthExceeded: they never will.
            RequestError: an impossible token id.
            TargetFailed: the engine is shut down.
        """

        def command() -> Opening:
            if not self._reuse:
                return Opening(self.cache.allocate(most), 0)
            return Opening(*self.cache.open(prompt_ids, most, tenant))

        return await self.engine.call(
            command, abandoned=lambda opening: self.cache.free(opening.slot)
        )

    async def close(self, slot: int, token_ids: Sequence[int] = ()) -> None:
        """Give a slot back; its job, if any, fails with `SessionLost`.

        Args:
            slot: of `open`.
            token_ids: those that the slot holds, at least as many: kept for later sequences that
                begin alike, unless a job of the slot failed. Read on the engine's thread.
        """

        def command() -> None:
            self._drop(slot, SessionLost("the session was released"))
            self.cache.retire(slot, token_ids)

        with suppress(TargetFailed):  # an engine that is shut down holds nothing
            await self.engine.call(command)

    async def forget(self) -> None:
        """Drop what is kept of sequences that have ended."""
        with suppress(TargetFailed):  # as above
            await self.engine.call(self.cache.forget)

    def submit(self, job: Job) -> None:
        """Let `job` take part in steps until it is done.

        An earlier job of its slot fails with `StaleRound`.
        """

        def command() -> None:
            self._drop(job.slot, StaleRound("a later round of the session began"))
            if not job.cancelled:
                self._continue(job)

        self.engine.post(command, job.fail)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._active)

    def step(self) -> None:
        """One forward pass over what is ready. Runs on the engine's thread."""
        self.engine.gather(
            lambda: len(self._active) < self._last.batch_size,
            min(_GATHER_SHARE * self._last.seconds, _GATHER_MAX_S),
        )
        self._active = [active for active in self._active if not active.job.cancelled]
        if batch := self._select(self._ready()):
            self._compute(batch)

    def stop(self, error: Exception) -> None:
        """Fail all jobs."""
        for active in self._active:
            self._fail(active.job, error)
        self._active = []

    def _ready(self) -> list[_Active]:
        """Who may take part in the next pass: all but those whose prompt another one reads too."""
        reading = {active.job.slot for active in self._active if not active.short}
        if not reading or not self._reuse:
            return self._active
        return [active for active in list(self._active) if self._may_go(active, reading)]

    def _may_go(self, active: _Active, reading: Container[int]) -> bool:
        if active.short:
            return True
        slot = active.job.slot
        known = self.cache.length(slot)
        most = known + active.left - max(active.feed.num_logits, 1)
        try:
            ready = self.cache.catch_up(slot, most, reading)
        except Exception as error:  # out of memory, for one
            self._active.remove(active)
            self._fail(active.job, error)
            return False
        active.done += self.cache.length(slot) - known
        return ready

    def _select(self, ready: Sequence[_Active]) -> list[tuple[_Active, Chunk]]:
        """What the next pass computes: short feeds whole, and pieces of long ones.

        Short feeds, those of running sequences, are taken in the order in which they came, up to
        `step_tokens`; one that is put off is among the first next time. More in one pass would make
        all of them wait for all, and hold the logits of all at once.

        Long feeds, prompts, get the whole step if nothing else runs, else a quarter of it, so that
        running sequences keep their rhythm. Half of that is for the prompt that came first, the
        rest for the shortest: so none starves, and none waits for all the others.
        """
        batch: list[tuple[_Active, Chunk]] = []
        left = self._step_tokens
        for active in ready:
            if active.short and (not batch or active.left <= left):
                batch.append((active, active.chunk(active.left)))
                left -= active.left
        long = [active for active in ready if not active.short]
        if not long:
            return batch
        budget = self._step_tokens // _SHARE if batch else self._step_tokens
        first, *others = long
        reserved = min(first.left, (budget + 1) // 2)
        left = budget - reserved
        for active in sorted(others, key=lambda active: active.left):
            if left > 0:
                chunk = active.chunk(min(active.left, left))
                batch.append((active, chunk))
                left -= len(chunk.token_ids)
        batch.append((first, first.chunk(min(first.left, reserved + max(left, 0)))))
        return batch

    def _compute(self, batch: list[tuple[_Active, Chunk]]) -> None:
        started = time.perf_counter()
        try:
            logits = self.decoder.forward([chunk for _, chunk in batch], self.cache)
        except Exception as error:
            if len(batch) > 1:
                # The pass left every slot as it was; one by one it shows whose fault it is.
                for one in batch:
                    self._compute([one])
                return
            _log.exception("engine_pass_failed")
            active, _ = batch[0]
            self._active.remove(active)
            self._fail(active.job, error)
            return
        seconds = time.perf_counter() - started
        num_tokens = sum(len(chunk.token_ids) for _, chunk in batch)
        self._last = StepInfo(seconds, len(batch), num_tokens)
        for (active, chunk), rows in zip(batch, logits, strict=True):
            active.done += len(chunk.token_ids)
            if active.left == 0:
                self._settle(active, rows)

    def _settle(self, active: _Active, logits: torch.Tensor) -> None:
        """Hand a job its logits, and take its next feed."""
        self._active.remove(active)
        try:
            active.job.take(logits, self._last)
        except Exception as error:  # one job's fault is not the others'
            self._fail(active.job, error)
        else:
            self._continue(active.job)

    def _continue(self, job: Job) -> None:
        try:
            feed = job.feed()
        except Exception as error:  # as above
            self._fail(job, error)
            return
        if feed is not None:
            self._active.append(_Active(job, feed))

    def _drop(self, slot: int, error: Exception) -> None:
        for active in [active for active in self._active if active.job.slot == slot]:
            self._active.remove(active)
            self._fail(active.job, error)

    def _fail(self, job: Job, error: Exception) -> None:
        """End a job. Unless it was merely called off, nobody else shall get what its slot holds."""
        if not isinstance(error, (SessionLost, StaleRound)):
            self.cache.distrust(job.slot)
        job.fail(error)
