"""Draft servers under test: our own, and scripted ones that do whatever a server may do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from outrider.config import Settings
from outrider.drafters import SessionView
from outrider.drafters.fleet import Fleet
from outrider.drafters.remote import RemoteDrafter
from outrider.types import SamplingParams, TargetInfo

V = 5


Handler = Callable[[bytes, bytes, asyncio.StreamWriter], Awaitable[bytes | None]]
"""Path and body to a whole answer; None closes the connection without one."""


def target(fingerprint: str = "ids:5") -> TargetInfo:
    return TargetInfo("target", "hash", V, fingerprint, frozenset(), 64)


def remote_drafter(
    *urls: str, fingerprint: str = "ids:5", deadline_ms: float = 60.0, **sections: Any
):
    settings = Settings(speculation={"remote_deadline_ms": deadline_ms}, **sections)
    info = target(fingerprint)
    return RemoteDrafter(Fleet(urls, info, settings), info, deadline_s=deadline_ms / 1000)


def view(tokens: list[int], session_id: str = "s", **fields: Any) -> SessionView:
    fields = {"sampling": SamplingParams(temperature=0.0), "noise_key": 7} | fields
    return SessionView(session_id, tokens, len(tokens), 2, **fields)


def answer(
    body: Any, *, status: int = 200, media_type: str = "application/json", headers: str = ""
) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {media_type}\r\n{headers}"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


DESCRIPTION = {
    "name": "fake",
    "model_hash": "h",
    "vocab_size": V,
    "vocab_fingerprint": "ids:5",
    "context_length": 64,
}


@dataclass
class Scripted:
    """A server that answers as it is told.

    Attributes:
        propose: the answer to drafts, made from the body and the writer of the connection.
        describe: the answer to `GET /v1/describe`.
        asked: paths, in order.
        bodies: of drafts asked for.
        connections: accepted so far.
    """

    propose: Handler | bytes | None = None
    describe: bytes | None = field(default_factory=lambda: answer(DESCRIPTION))
    asked: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    @property
    def drafts(self) -> int:
        return self.asked.count("/v1/propose")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ")[1].decode()
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                body = await reader.readexactly(length)
                self.asked.append(path)
                self.heads.append(head)
                content = await self._answer(path, body, writer)
                if content is None:
                    return
                writer.write(content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> bytes | None:
        if path == "/v1/describe":
            return self.describe
        if path == "/v1/release":
            return answer({})
        self.bodies.append(body)
        if self.propose is None or isinstance(self.propose, bytes):
            return self.propose
        return await self.propose(path.encode(), body, writer)


@asynccontextmanager
async def scripted(**fields: Any) -> AsyncIterator[Scripted]:
    server = Scripted(**fields)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    server.url = f"http://127.0.0.1:{port}"
    try:
        yield server
    finally:
        listener.close()
