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


def _ignore(_: object) -> None:
    """Nothing to undo."""


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


@dataclass(slots=True, eq=False)
class _Turn:
    """A stepper, and the seconds that it has had."""

    stepper: Stepper
    spent_s: float = 0.0


class EngineThread:
    """Runs the steps of its steppers while they have work, each for as much time as any other.

    So a draft of many short steps need not wait for a long step of the target in front of each:
    it is there for the next one, which costs the others no more than if it came later. Who was idle
    has saved nothing up.

    Args:
        threads: compute threads of torch; 0 leaves torch's own choice.
    """

    def __init__(self, *, threads: int = 0) -> None:
        self._threads = threads
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._turns: list[_Turn] = []
        self._served_s = 0.0  # what whoever came last had had
        self._closing = False
        self._ended = False
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="outrider-engine", daemon=True)
        self._thread.start()

    def add(self, stepper: Stepper) -> None:
        """Drive `stepper` from now on."""
        self.post(lambda: self._turns.append(_Turn(stepper)))

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
        self, function: Callable[[], T], *, abandoned: Callable[[T], None] = _ignore
    ) -> T:
        """The result of `function`, run on the thread before its next step.

        It runs even if the caller is cancelled meanwhile; then `abandoned` gets the result, on the
        thread.

        Raises:
            TargetFailed: the thread has ended.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def command() -> None:
            try:
                result = function()
            except Exception as error:  # the caller gets it, whatever it is
                refuse(error)
                return
            # At once, if it can be known: who comes next may count on it.
            if future.cancelled() or not _tell(loop, settle, result):
                abandoned(result)

        def settle(result: T) -> None:
            if future.cancelled():
                self.post(partial(abandoned, result))
            else:
                future.set_result(result)

        def refuse(error: Exception) -> None:
            _tell(loop, lambda: None if future.done() else future.set_exception(error))

        self.post(command, refuse)
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                self.post(partial(abandoned, future.result()))
            raise

    def gather(self, wanted: Callable[[], bool], seconds: float) -> None:
        """Run commands for at most `seconds` while `wanted` holds. On the thread, within a step.

        Returns at once if another stepper has work.
        """
        deadline = time.perf_counter() + seconds
        while (
            wanted()
            and sum(turn.stepper.busy for turn in self._turns) < 2
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
            busy = [turn for turn in self._turns if turn.stepper.busy]
            try:
                command = self._commands.get(block=not busy)
            except queue.Empty:
                self._step(busy)
            else:
                self._run(command)
        self._end()

    def _end(self) -> None:
        with self._ending:
            self._ended = True
        for turn in self._turns:
            turn.stepper.stop(_shut_down())
        while not self._commands.empty():
            self._commands.get().refuse(_shut_down())

    # A fault in one command or model must not end the thread that all share.

    @staticmethod
    def _run(command: _Command) -> None:
        try:
            command.run()
        except Exception:
            _log.exception("engine_command_failed")

    def _step(self, busy: list[_Turn]) -> None:
        for turn in busy:
            turn.spent_s = max(turn.spent_s, self._served_s)
        turn = min(busy, key=lambda turn: turn.spent_s)
        self._served_s = turn.spent_s
        started = time.perf_counter()
        try:
            turn.stepper.step()
        except Exception as error:
            _log.exception("engine_step_failed")
            turn.stepper.stop(error)
        turn.spent_s += time.perf_counter() - started


def _shut_down() -> TargetFailed:
    return TargetFailed("the engine is shut down")


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> bool:
    """Call on the loop; False if it is closed, and nobody waits any more."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        return False
    return True
