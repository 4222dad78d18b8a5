"""The gateway's end of one `Decode` stream: one writer, one reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import DecodeError

from outrider.rpc import target_inference_pb2 as pb

__all__ = ["Break", "Call", "DecodeStream"]

_MESSAGE_BYTES: Final = 32 * 1024
"""What one message is filled to; a server takes at least twice as much."""


class Call(Protocol):
    """What is needed of gRPC's call: serialized messages in both directions."""

    async def write(self, request: bytes) -> None: ...

    async def read(self) -> Any: ...

    def cancel(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Break:
    """Why there is no stream.

    Attributes:
        reason: for people.
        code: of gRPC; None if nobody but us ended it.
    """

    reason: str
    code: grpc.StatusCode | None = None

    @staticmethod
    def of(error: grpc.RpcError) -> Break:
        """What gRPC says of a call that failed."""
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
        details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
        return Break(" ".join((details or str(code)).split())[:500], code)


class DecodeStream:
    """Sends actions, as many as are ready in one message, and hands events on.

    Args:
        call: of this stream alone.
        take: told every event, in order. Must not raise.

    Attributes:
        heard: whether the server has said anything yet.
    """

    def __init__(self, call: Call, take: Callable[[pb.Event], None]) -> None:
        self.heard = False
        self._call = call
        self._take = take
        self._actions: deque[pb.Action] = deque()
        self._ready = asyncio.Event()

    def post(self, action: pb.Action) -> None:
        """Send an action soon, behind those that were posted before."""
        self._actions.append(action)
        self._ready.set()

    async def run(self) -> Break:
        """Carry actions and events until the stream breaks."""
        writer = asyncio.create_task(self._write())
        try:
            return await self._read()
        except grpc.RpcError as error:
            return Break.of(error)
        finally:
            self._call.cancel()
            writer.cancel()
            await asyncio.wait([writer])

    async def _read(self) -> Break:
        while (data := await self._call.read()) is not grpc.aio.EOF:
            try:
                response = pb.DecodeResponse.FromString(data)
            except DecodeError as error:
                return Break(f"it sent what is no message: {error}")
            self.heard = True
            for event in response.events:
                self._take(event)
        return Break("it ended the stream")

    async def _write(self) -> None:
        # Whoever is ready in the same turn of the event loop gets into the same message.
        while await self._ready.wait():
            while self._actions:
                request = pb.DecodeRequest(actions=self._next())
                try:
                    await self._call.write(request.SerializeToString())
                except (grpc.RpcError, asyncio.InvalidStateError):
                    return  # the stream is over; whoever reads learns why
            self._ready.clear()

    def _next(self) -> Sequence[pb.Action]:
        """As many actions as one message takes, at least one."""
        taken = [self._actions.popleft()]
        size = taken[0].ByteSize()
        while self._actions and (size := size + self._actions[0].ByteSize()) <= _MESSAGE_BYTES:
            taken.append(self._actions.popleft())
        return taken
