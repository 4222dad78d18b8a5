"""One session on a target server: what it was asked for in order, its round, its lease."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from outrider.errors import OutriderError, RequestError, SessionLost, TargetFailed
from outrider.rpc import target_inference_pb2 as pb
from outrider.servers.answers import Stream, failure
from outrider.servers.target_checks import Checks
from outrider.servers.target_metrics import TargetMetrics
from outrider.targets import Target
from outrider.targets.wire import encode_verification

__all__ = ["HeldSession", "Host"]

_MAX_TURNS: Final = 16
"""Actions of one session that may wait for each other; nobody needs more than four."""

_SHOWN: Final = 6
"""Digits of a session's number in the log: who knows all of it may go on with the session."""

_log = structlog.get_logger("outrider.target")


class Host(Protocol):
    """What a session needs of the server that holds it."""

    target: Target
    checks: Checks
    metrics: TargetMetrics
    draining: bool

    def forget(self, held: HeldSession) -> None:
        """The session is over."""
        ...


@dataclass(slots=True, eq=False)
class _Turn:
    """One action that waits for its turn, or has it.

    Attributes:
        action: None stands for a release of the server's own.
        kind: of the action.
        stream: that it came over, and its answers go to; None for the server's own.
        moved: it came over another stream than the action before.
        stopped: of a round: it shall go no further.
    """

    action: pb.Action | None
    kind: str
    stream: Stream | None
    moved: bool = False
    stopped: bool = False


class HeldSession:
    """Takes actions one after the other, in a task that exists while there are any.

    What changes things for a round under way is done at once by `take`, which never waits: a later
    round, a cancel, a release and a reopening stop it within the running step.

    Args:
        number: of the session.
        host: the server.
    """

    def __init__(self, number: int, host: Host) -> None:
        self.number = number
        self._session_id = f"{number:016x}"
        self._host = host
        self._stream: Stream | None = None
        self._turns: deque[_Turn] = deque()
        self._task: asyncio.Task[None] | None = None
        self._running = False  # the first turn is a round, and its task may be cancelled
        self._cut = False
        self._open = False
        self._epoch = 0
        self._max_tokens = 0
        self._lease: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether anything that was asked for is not done yet."""
        return self._task is not None

    async def idle(self) -> None:
        """Wait until all that was asked for is done."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def take(self, action: pb.Action, stream: Stream) -> None:
        """Do what is asked, for whoever asks: to know the number is the right to go on with it."""
        moved = self._adopt(stream)
        kind = action.WhichOneof("kind")
        if kind == "cancel":
            self._stop(action.cancel.round_id)
            return
        if len(self._turns) >= _MAX_TURNS:
            waiting = RequestError(
                f"{len(self._turns)} actions of the session wait for their turn; await the answers",
                code="too_many_actions",
            )
            self._fail(_Turn(action, "", stream), waiting)
            return
        if kind != "open" or moved or action.open.epoch > self._epoch:
            self._stop()
        self._enqueue(_Turn(action, kind or "", stream, moved))

    def leave(self, lease_s: float) -> None:
        """The stream has ended: stop, and wait so long for another one to go on."""
        self._stream = None
        self._stop()
        if self._lease is None:
            self._lease = asyncio.get_running_loop().call_later(lease_s, self._expire)

    def cut(self) -> None:
        """Stop, tell whoever waits for a round that the server shuts down, and release."""
        self._cut = True
        self._stop()
        self._enqueue(_Turn(None, "release", None))

    def _adopt(self, stream: Stream) -> bool:
        """Belong to this stream from now on; returns whether that is another one than before."""
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
        if self._stream is stream:
            return False
        if self._stream is not None:
            self._stream.sessions.discard(self)
        self._stream = stream
        stream.sessions.add(self)
        return True

    def _expire(self) -> None:
        self._lease = None
        self._host.metrics.leases_expired.inc()
        self._enqueue(_Turn(None, "release", None))
        _log.info("lease_expired", session=self._session_id[:_SHOWN])

    def _enqueue(self, turn: _Turn) -> None:
        self._turns.append(turn)
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    def _stop(self, round_id: int | None = None) -> None:
        """Stop this round, or all of them, under way or waiting."""
        for turn in self._turns:
            if turn.kind != "advance" or turn.action is None or turn.stopped:
                continue
            if round_id is None or turn.action.advance.round_id == round_id:
                turn.stopped = True
                if self._running and turn is self._turns[0] and self._task is not None:
                    self._task.cancel()

    async def _work(self) -> None:
        try:
            while self._turns:
                await self._act(self._turns[0])
                self._turns.popleft()
        finally:
            self._task = None
            if not self._open:
                self._end()

    def _end(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
        if self._stream is not None:
            self._stream.sessions.discard(self)
        self._host.forget(self)

    async def _act(self, turn: _Turn) -> None:
        try:
            if turn.kind == "release" or turn.action is None:
                await self._release()
                self._answer(turn, released=pb.Released())
            elif turn.kind == "open":
                await self._reopen(turn, turn.action.open)
            else:
                await self._round(turn, turn.action.advance)
        except OutriderError as error:
            self._fail(turn, error)
        except Exception:
            self._fail(turn, TargetFailed("the target server failed; its log says why"))
            _log.exception("target_server_failed", session=self._session_id[:_SHOWN])

    async def _reopen(self, turn: _Turn, message: pb.Open) -> None:
        if self._host.draining:
            self._fail(turn, None)
            return
        # Asked again over a new stream, since the answer was lost with the old one.
        again = turn.moved and message.epoch == self._epoch
        if self._open and message.epoch <= self._epoch and not again:
            raise RequestError(
                f"epoch is {message.epoch}, and the session is open in epoch {self._epoch}; raise "
                "it to open the session again",
                param="epoch",
            )
        request = self._host.checks.open(message, self._session_id)
        await self._release()
        opened = await self._host.target.open(request)
        self._open = True
        self._epoch, self._max_tokens = request.epoch, request.sampling.max_tokens
        self._answer(
            turn, opened=pb.Opened(epoch=request.epoch, cached_tokens=opened.cached_tokens)
        )

    async def _release(self) -> None:
        if self._open:
            self._open = False
            await self._host.target.release(self._session_id)

    async def _round(self, turn: _Turn, message: pb.Advance) -> None:
        if not turn.stopped:
            await self._run(turn, message)
        if turn.stopped and self._cut:
            self._fail(turn, None)
        else:
            self._answer(turn, ended=pb.Ended(round_id=message.round_id))

    async def _run(self, turn: _Turn, message: pb.Advance) -> None:
        """Answer a round until it is done or stopped."""
        if not self._open:
            raise SessionLost("the session is not open here; open it again")
        if message.epoch != self._epoch:
            raise SessionLost(
                f"round {message.round_id} is of epoch {message.epoch}, and the session is open in "
                f"epoch {self._epoch}"
            )
        self._running = True
        try:
            await self._advance(message, turn.stream)
        except asyncio.CancelledError:
            if not turn.stopped:
                raise
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
        finally:
            self._running = False

    async def _advance(self, message: pb.Advance, stream: Stream | None) -> None:
        draft = self._host.checks.advance(message, self._max_tokens)
        self._host.metrics.rounds.inc()
        answers = self._host.target.advance(
            self._session_id, message.round_id, message.position, draft, message.run
        )
        async with aclosing(answers):
            async for answer in answers:
                self._host.metrics.observe_answer(answer)
                if stream is not None:
                    event = pb.Event(session=self.number, verified=encode_verification(answer))
                    await stream.outbox.put(event)  # whoever does not read has its rounds wait

    def _answer(self, turn: _Turn, **outcome: Any) -> None:
        """One of the outcomes that `Stream.answer` tells, to whoever asked."""
        if turn.stream is not None:
            turn.stream.answer(self.number, **outcome)

    def _fail(self, turn: _Turn, error: OutriderError | None) -> None:
        if turn.action is not None:
            failed = failure(turn.action, error)
            self._host.metrics.observe_failure(failed)
            self._answer(turn, failed=failed)
