"""What is to be written to one stream, as few messages as possible."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from outrider.rpc import target_inference_pb2 as pb

__all__ = ["Outbox"]

_CAPACITY: Final = 256 * 1024
"""Bytes that wait for a peer which does not read; then whoever would add to them waits."""

_OVERHEAD: Final = 64
"""Bytes that an event counts beyond its own, so that empty ones are bounded too."""


class Outbox:
    """Events on their way to one stream, for one event loop.

    Args:
        max_message_bytes: of one message, at most.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._most = min(max_message_bytes // 2, _CAPACITY)
        self._events: deque[tuple[pb.Event, int]] = deque()
        self._size = 0
        self._closed = False
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, event: pb.Event) -> None:
        """Add an event, once there is room; at once and in vain if the stream has ended."""
        await self.room()
        self.push(event)

    async def room(self) -> None:
        """Wait until the peer has taken enough of what it was sent."""
        while not self._room.is_set():
            await self._room.wait()

    def push(self, event: pb.Event) -> None:
        """Add an event whether or not there is room: one of those that end what was asked for, of
        which there are no more than what was asked."""
        if self._closed:
            return
        size = event.ByteSize() + _OVERHEAD
        self._events.append((event, size))
        self._size += size
        self._ready.set()
        if self._size >= _CAPACITY:
            self._room.clear()

    async def take(self) -> list[pb.Event]:
        """What is ready, as much as fits into one message; nothing once closed and empty."""
        await self._ready.wait()
        # Whoever became ready in the same turn of the event loop gets to add to the message.
        await asyncio.sleep(0)
        taken: list[pb.Event] = []
        size = 0
        while self._events and (not taken or size + self._events[0][1] <= self._most):
            event, bytes_ = self._events.popleft()
            taken.append(event)
            size += bytes_
        self._size -= size
        if self._size < _CAPACITY:
            self._room.set()
        if not self._events and not self._closed:
            self._ready.clear()
        return taken

    def close(self) -> None:
        """Take no more events; those within may still be taken."""
        self._closed = True
        self._ready.set()
        self._room.set()

    def discard(self) -> None:
        """Close, and drop what is within."""
        self.close()
        self._events.clear()
        self._size = 0
