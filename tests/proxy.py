"""A TCP proxy on loopback that does what networks do: delay, stall, reset."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

CHUNK = 64 * 1024
QUEUED = 1024
"""Chunks on their way in one direction; then whoever sends waits."""


class Proxy:
    """Forwards connections to a port of this machine.

    Args:
        target_port: where they go; may be changed at any time for those to come.
        delay_s: seconds that every byte spends on its way, in each direction.

    Attributes:
        port: where the proxy listens.
        connections: made so far.
    """

    def __init__(self, target_port: int, *, delay_s: float = 0.0) -> None:
        self.target_port = target_port
        self.delay_s = delay_s
        self.port = 0
        self.connections = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.resume()
        self.cut()
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._tasks)

    def cut(self) -> None:
        """Reset every connection; new ones are welcome."""
        for writer in list(self._writers):
            writer.transport.abort()

    def stall(self) -> None:
        """Forward nothing more, and leave every connection open: neither side is told."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again, beginning with what came meanwhile."""
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections += 1
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._forward(reader, writer)
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            return  # nobody listens; resetting the caller's connection says so
        self._writers.add(there[1])
        ways = [
            asyncio.create_task(self._carry(reader, there[1])),
            asyncio.create_task(self._carry(there[0], writer)),
        ]
        try:
            # Once either side has gone, so has the connection.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            there[1].transport.abort()
            self._writers.discard(there[1])

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction: what is read at a time is written `delay_s` later, in order."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED)
        sender = asyncio.create_task(self._send(queue, writer))
        loop = asyncio.get_running_loop()
        try:
            with suppress(ConnectionError):
                while data := await reader.read(CHUNK):
                    await queue.put((loop.time() + self.delay_s, data))
                await queue.put((loop.time() + self.delay_s, b""))
                await sender
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def _send(
        self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            await self._flowing.wait()
            if not data:
                return
            writer.write(data)
            await writer.drain()
