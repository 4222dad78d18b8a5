"""The engine's thread: whatever sequences are ready share the next forward pass.

Several models (lanes) live on one thread, so that a draft model and its target never compete for
the cores. All caches are touched by this thread alone, between its steps; nothing is locked.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog
import torch

from outrider.engine.batch import Chunk
from outrider.engine.cache import KVCache
from outrider.engine.decoder import Decoder
from outrider.errors import TargetFailed

__all__ = ["EngineThread", "Feed", "Job", "Lane", "StepInfo"]

T = TypeVar("T")

_GATHER_SHARE = 0.05
_GATHER_MAX_S = 0.004
"""How long a step waits for sequences of the step before to come back: a share of that step's own
time.
"""

_SHORT = 32
"""Feeds of up to so many tokens, such as drafts to judge, are never cut or put off."""

_log = structlog.get_logger("outrider.engine")


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens that a job wants appended to its slot, and for how many of the last ones it wants
    logits (>= 1).
    """

    token_ids: Sequence[int]
    num_logits: int


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One forward pass: how long it took, and how many sequences shared it."""

    seconds: float
    batch_size: int


class Job(ABC):
    """Work on one slot: tokens in, logits back, until there is no more to feed.

    All methods run on the engine's thread. `cancel` may be called from any thread; it takes effect
    before the next step.
    """

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.cancelled = False

    def cancel(self) -> None:
        """Take no part in any further step."""
        self.cancelled = True

    @abstractmethod
    def feed(self) -> Feed | None:
        """What to compute next, or None if the job is done."""

    @abstractmethod
    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        """Logits, float32 of shape [num_logits, V], of the last tokens fed."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """The job is over: `error` was raised by a step, by `feed` or by `take`."""


class EngineThread:
    """Runs the steps of its lanes in turn while they have work.

    Args:
        threads: compute threads of torch; 0 leaves torch's own choice.
    """

    def __init__(self, *, threads: int = 0) -> None:
        self._threads = threads
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lanes: list[Lane] = []
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="outrider-engine", daemon=True)
        self._thread.start()

    def lane(self, decoder: Decoder, *, num_slots: int, max_length: int, step_tokens: int) -> Lane:
        """Put another model on this thread.

        Args:
            decoder: the model.
            num_slots: sequences held at a time.
            max_length: longest sequence, in tokens.
            step_tokens: most tokens in one forward pass.
        """
        cache = decoder.new_cache(num_slots=num_slots, max_length=max_length)
        lane = Lane(self, decoder, cache, num_slots, step_tokens)
        self.post(lambda: self._lanes.append(lane))
        return lane

    def post(self, command: Callable[[], None]) -> None:
        """Run `command` on the thread before its next step, in order of posting."""
        self._commands.put(command)

    async def call(
        self, function: Callable[[], T], *, abandoned: Callable[[T], None] | None = None
    ) -> T:
        """The result of `function`, run on the thread before its next step.

        It runs even if the caller is cancelled meanwhile; then `abandoned` gets the result, on the
        thread.
        """
        if self._closed:
            raise TargetFailed("the engine is shut down")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(outcome: Callable[[], None]) -> None:
            if not future.done():
                outcome()

        def command() -> None:
            try:
                result = function()
            except Exception as error:  # the caller gets it, whatever it is
                loop.call_soon_threadsafe(settle, partial(future.set_exception, error))
                return
            loop.call_soon_threadsafe(settle, partial(future.set_result, result))

        self.post(command)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if abandoned is not None:
                future.add_done_callback(partial(self._abandon, abandoned))
            raise

    def _abandon(self, abandoned: Callable[[T], None], future: asyncio.Future[T]) -> None:
        if not future.cancelled() and future.exception() is None:
            self.post(partial(abandoned, future.result()))

    def close(self) -> None:
        """End the thread after its running step."""
        self._closed = True
        self.post(lambda: None)
        self._thread.join()

    def gather(self, wanted: Callable[[], bool], seconds: float) -> None:
        """Run commands for at most `seconds` while `wanted` holds."""
        deadline = time.perf_counter() + seconds
        while wanted() and (left := deadline - time.perf_counter()) > 0:
            try:
                self._run(self._commands.get(timeout=left))
            except queue.Empty:
                return

    def _loop(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        while not self._closed:
            busy = [lane for lane in self._lanes if lane.busy]
            try:
                command = self._commands.get(block=not busy)
            except queue.Empty:
                for lane in busy:
                    lane.step()
            else:
                self._run(command)

    @staticmethod
    def _run(command: Callable[[], None]) -> None:
        try:
            command()
        except Exception:  # a faulty command must not end the thread that everyone shares
            _log.exception("engine_command_failed")


@dataclass(slots=True)
class _Active:
    """A job in a lane, with the part of its feed that is not computed yet."""

    job: Job
    feed: Feed
    done: int = 0

    @property
    def left(self) -> int:
        return len(self.feed.token_ids) - self.done


class Lane:
    """One model on the engine's thread: its cache, and the jobs that want its next step.

    Attributes:
        decoder: the model.
        cache: its slots; touch it on the engine's thread only.
        engine: the thread.
        num_slots: sequences held at a time.
        step_tokens: most tokens of long feeds in one pass.
    """

    def __init__(
        self,
        engine: EngineThread,
        decoder: Decoder,
        cache: KVCache,
        num_slots: int,
        step_tokens: int,
    ) -> None:
        self.engine = engine
        self.decoder = decoder
        self.cache = cache
        self.num_slots = num_slots
        self.step_tokens = step_tokens
        self._active: list[_Active] = []
        self._last = StepInfo(0.0, 0)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._active)

    async def allocate(self) -> int:
        """A free slot. Raises `Overloaded` if there is none."""
        return await self.engine.call(self.cache.allocate, abandoned=self.cache.free)

    async def free(self, slot: int) -> None:
        """Drop the slot's job and give the slot back."""

        def command() -> None:
            self._drop(slot)
            self.cache.free(slot)

        await self.engine.call(command)

    def submit(self, job: Job) -> None:
        """Let `job` take part in steps until it is done; it replaces an earlier job of its slot."""

        def command() -> None:
            self._drop(job.slot)
            if not job.cancelled:
                self._continue(job)

        self.engine.post(command)

    def step(self) -> None:
        """One forward pass over what is ready. Runs on the engine's thread."""
        self.engine.gather(
            lambda: len(self._active) < self._last.batch_size,
            min(_GATHER_SHARE * self._last.seconds, _GATHER_MAX_S),
        )
        self._active = [active for active in self._active if not active.job.cancelled]
        batch = self._select()
        if not batch:
            return
        started = time.perf_counter()
        try:
            logits = self.decoder.forward([chunk for _, chunk in batch], self.cache)
        except Exception as error:  # whatever broke the pass ends its jobs, not the thread
            _log.exception("engine_step_failed", sequences=len(batch))
            self._fail([active for active, _ in batch], error)
            return
        self._last = StepInfo(time.perf_counter() - started, len(batch))
        for (active, chunk), rows in zip(batch, logits, strict=True):
            active.done += len(chunk.token_ids)
            if active.left == 0:
                self._settle(active, rows)

    def _select(self) -> list[tuple[_Active, Chunk]]:
        """What the next pass computes: all short feeds, and pieces of long ones, in order."""
        short = [active for active in self._active if active.left <= _SHORT]
        taken = sum(active.left for active in short)
        budget = max(self.step_tokens - taken, self.step_tokens // 4)
        batch = [(active, self._chunk(active, active.left)) for active in short]
        for active in self._active:
            if active.left <= _SHORT or budget <= 0:
                continue
            count = min(active.left, budget)
            if count < active.left:
                # Rows with logits must come from one pass.
                count = min(count, active.left - active.feed.num_logits)
            if count > 0:
                batch.append((active, self._chunk(active, count)))
                budget -= count
        return batch

    @staticmethod
    def _chunk(active: _Active, count: int) -> Chunk:
        ids = active.feed.token_ids[active.done : active.done + count]
        wanted = active.feed.num_logits if count == active.left else 0
        return Chunk(active.job.slot, ids, wanted)

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

    def _fail(self, failed: list[_Active], error: Exception) -> None:
        for active in failed:
            self._active.remove(active)
            active.job.fail(error)

    def _drop(self, slot: int) -> None:
        self._active = [active for active in self._active if active.job.slot != slot]
