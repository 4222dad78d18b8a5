"""The engine's thread: runs the steps of all models in turn, and commands between them.

All caches are touched by this thread alone, between its steps; nothing else is locked.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import structlog
import torch

from outrider.errors import TargetFailed

__all__ = ["EngineThread", "Stepper"]

T = TypeVar("T")

_log = structlog.get_logger("outrider.engine")


class Stepper(Protocol):
    """What an engine thread drives. All methods are called on the thread."""

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        ...

    def step(self) -> None:
        """Do a bounded piece of work."""
        ...

    def stop(self, error: Exception) -> None:
        """Give up all work, and tell whoever waits for it."""
        ...


@dataclass(frozen=True, slots=True)
class _Command:
    """Something to do between steps, and what to do instead if the thread has ended."""

    run: Callable[[], None]
    refuse: Callable[[Exception], None]


class EngineThread:
    """Runs the steps of its steppers in turn while they have work.

    Args:
        threads: compute threads of torch; 0 leaves torch's own choice.
    """

    def __init__(self, *, threads: int = 0) -> None:
        self._threads = threads
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._steppers: list[Stepper] = []
        self._closing = False
        self._ended = False
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="outrider-engine", daemon=True)
        self._thread.start()

    def add(self, stepper: Stepper) -> None:
        """Drive `stepper` from now on."""
        self.post(lambda: self._steppers.append(stepper))

    def post(
        self, run: Callable[[], None], refuse: Callable[[Exception], None] = lambda _: None
    ) -> None:
        """Run `run` on the thread before its next step, in order of posting.

        If the thread has ended, `refuse` is called instead, with the reason.
        """
        with self._ending:
            if not self._ended:
                self._commands.put(_Command(run, refuse))
                return
        refuse(_shut_down())

    async def call(
        self, function: Callable[[], T], *, abandoned: Callable[[T], None] | None = None
    ) -> T:
        """The result of `function`, run on the thread before its next step.

        It runs even if the caller is cancelled meanwhile; then `abandoned` gets the result, on the
        thread.

        Raises:
            TargetFailed: the thread has ended.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(outcome: Callable[[], None]) -> None:
            if not future.done():
                outcome()

        def command() -> None:
            try:
                result = function()
            except Exception as error:  # the caller gets it, whatever it is
                refuse(error)
                return
            if not _tell(loop, settle, partial(future.set_result, result)) and abandoned:
                abandoned(result)

        def refuse(error: Exception) -> None:
            _tell(loop, settle, partial(future.set_exception, error))

        self.post(command, refuse)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if abandoned is not None:
                future.add_done_callback(partial(self._abandon, abandoned))
            raise

    def _abandon(self, abandoned: Callable[[T], None], future: asyncio.Future[T]) -> None:
        if not future.cancelled() and future.exception() is None:
            self.post(partial(abandoned, future.result()))

    def gather(self, wanted: Callable[[], bool], seconds: float) -> None:
        """Run commands for at most `seconds` while `wanted` holds. On the thread, within a step.

        Returns at once if another stepper has work.
        """
        deadline = time.perf_counter() + seconds
        while (
            wanted()
            and sum(stepper.busy for stepper in self._steppers) < 2
            and (left := deadline - time.perf_counter()) > 0
        ):
            try:
                self._run(self._commands.get(timeout=left))
            except queue.Empty:
                return

    def close(self) -> None:
        """End the thread after its running step. Work under way fails with `TargetFailed`."""
        self._closing = True
        self.post(lambda: None)
        self._thread.join()

    def _loop(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        while not self._closing:
            busy = [stepper for stepper in self._steppers if stepper.busy]
            try:
                command = self._commands.get(block=not busy)
            except queue.Empty:
                for stepper in busy:
                    self._step(stepper)
            else:
                self._run(command)
        self._end()

    def _end(self) -> None:
        with self._ending:
            self._ended = True
        for stepper in self._steppers:
            stepper.stop(_shut_down())
        while not self._commands.empty():
            self._commands.get().refuse(_shut_down())

    # A fault in one command or model must not end the thread that all share.

    @staticmethod
    def _run(command: _Command) -> None:
        try:
            command.run()
        except Exception:
            _log.exception("engine_command_failed")

    @staticmethod
    def _step(stepper: Stepper) -> None:
        try:
            stepper.step()
        except Exception as error:
            _log.exception("engine_step_failed")
            stepper.stop(error)


def _shut_down() -> TargetFailed:
    return TargetFailed("the engine is shut down")


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> bool:
    """Call on the loop; False if it is closed, and nobody waits any more."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        return False
    return True
