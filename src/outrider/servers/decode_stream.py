"""One `Decode` stream: actions in, events out, neither waiting for the other's session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Final

from outrider.rpc import target_inference_pb2 as pb
from outrider.servers.answers import Stream
from outrider.servers.outbox import Outbox
from outrider.servers.target_sessions import Sessions

__all__ = ["DecodeStream"]

_AT_ONCE: Final = 64
"""Actions taken before other streams get their turn."""

Write = Callable[[pb.DecodeResponse], Awaitable[None]]


class DecodeStream:
    """Carries sessions for one gateway.

    Args:
        sessions: of the server.
        max_message_bytes: of one message, at most.
    """

    def __init__(self, sessions: Sessions, max_message_bytes: int) -> None:
        self._sessions = sessions
        self._outbox = Outbox(max_message_bytes)
        self._stream = Stream(self._outbox)

    async def run(self, requests: AsyncIterable[pb.DecodeRequest], write: Write) -> None:
        """Until the gateway has asked its last and all is answered, or `close`, or cancelled.

        Whichever it is, sessions that are still open get their lease.
        """
        reader = asyncio.create_task(self._read(requests))
        try:
            while events := await self._outbox.take():
                await write(pb.DecodeResponse(events=events))
            if reader.done():
                reader.result()
        finally:
            reader.cancel()
            self._sessions.leave(self._stream)
            self._outbox.discard()

    def close(self) -> None:
        """Write what is there, and end."""
        self._outbox.close()

    async def _read(self, requests: AsyncIterable[pb.DecodeRequest]) -> None:
        try:
            async for request in requests:
                for index, action in enumerate(request.actions):
                    await self._outbox.room()
                    if index % _AT_ONCE == _AT_ONCE - 1:
                        await asyncio.sleep(0)  # a message of a million holds up nobody else
                    self._sessions.take(action, self._stream)
            for held in list(self._stream.sessions):
                await held.idle()
        finally:
            self._outbox.close()
