"""Lanes and jobs: whatever sequences are ready share the next forward pass of their model."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog
import torch

from outrider.engine.batch import Chunk
from outrider.engine.decoder import Decoder
from outrider.engine.thread import EngineThread
from outrider.errors import SessionLost, StaleRound, TargetFailed

__all__ = ["Feed", "Job", "Lane", "StepInfo"]

_GATHER_SHARE = 0.05
_GATHER_MAX_S = 0.004
"""How long a step waits for sequences of the one before to come back: a share of its own time."""

_SHORT = 32
"""Feeds of up to so many tokens, such as drafts to judge, are never cut or put off."""

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
        return self.left <= max(_SHORT, self.feed.num_logits)

    def chunk(self, count: int) -> Chunk:
        """The next `count` tokens, or fewer if rows with logits would be cut apart."""
        if count < self.left:
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
        step_tokens: tokens of long feeds in one pass; short ones come on top.

    Attributes:
        cache: touch it on the engine's thread only.
    """

    def __init__(
        self,
        engine: EngineThread,
        decoder: Decoder,
        *,
        num_slots: int,
        max_length: int,
        step_tokens: int,
    ) -> None:
        self.engine = engine
        self.decoder = decoder
        self.num_slots = num_slots
        self.cache = decoder.new_cache(num_slots=num_slots, max_length=max_length)
        self._step_tokens = step_tokens
        self._active: list[_Active] = []
        self._last = StepInfo(0.0, 0, 0)
        engine.add(self)

    async def allocate(self) -> int:
        """A free slot. Raises `Overloaded` if there is none."""
        return await self.engine.call(self.cache.allocate, abandoned=self.cache.free)

    async def free(self, slot: int) -> None:
        """Give a slot back; its job, if any, fails with `SessionLost`."""

        def command() -> None:
            self._drop(slot, SessionLost("the session was released"))
            self.cache.free(slot)

        with suppress(TargetFailed):  # an engine that is shut down holds nothing
            await self.engine.call(command)

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
        if self._active:
            self._compute(self._select())

    def stop(self, error: Exception) -> None:
        """Fail all jobs."""
        for active in self._active:
            active.job.fail(error)
        self._active = []

    def _select(self) -> list[tuple[_Active, Chunk]]:
        """What the next pass computes: all short feeds, and pieces of long ones.

        Half of what long feeds get is for the one that came first, the rest for the shortest: so
        none starves, and none waits for all the others.
        """
        batch = [(active, active.chunk(active.left)) for active in self._active if active.short]
        taken = sum(len(chunk.token_ids) for _, chunk in batch)
        budget = max(self._step_tokens - taken, self._step_tokens // 4)
        long = [active for active in self._active if not active.short]
        if not long:
            return batch
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
            active.job.fail(error)
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
            active.job.fail(error)
        else:
            self._continue(active.job)

    def _continue(self, job: Job) -> None:
        try:
            feed = job.feed()
        except Exception as error:  # as above
            job.fail(error)
            return
        if feed is not None:
            self._active.append(_Active(job, feed))

    def _drop(self, slot: int, error: Exception) -> None:
        for active in [active for active in self._active if active.job.slot == slot]:
            self._active.remove(active)
            active.job.fail(error)
