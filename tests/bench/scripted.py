"""A server whose streams are scripted, by a clock that only it moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from outrider.bench import Answer, Chunk, Counting, Prompt

__all__ = ["ScriptedClock", "ScriptedServer", "answer_at", "prompt"]


@dataclass
class ScriptedClock:
    """Stands still until it is moved. `read` is set whenever it is read."""

    now: float = 100.0
    read: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self) -> float:
        self.read.set()
        return self.now


Piece = tuple[float, str, int]
"""Seconds since the piece before, its text, and its tokens."""


@dataclass
class ScriptedServer:
    """Streams the next script to whoever asks; the last one for ever.

    Attributes:
        clock: moved before each piece, which is sent when the one before was read.
        scripts: of answers, in the order of requests.
        usage: never, last or each.
        refuses: `stream_options` that are refused.
        fail: statuses of answers to come; 200 answers.
        breaks: an error event ends the stream behind its first piece.
        tail: further fields of the last chunk.
    """

    clock: ScriptedClock
    scripts: list[list[Piece]]
    usage: str = "each"
    refuses: tuple[str, ...] = ()
    fail: list[int] = field(default_factory=list)
    breaks: bool = False
    tail: dict[str, Any] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        options = body.get("stream_options", {})
        for name in self.refuses:
            if name in options or name in body:
                return _error(400, f"unknown field {name}")
        status = self.fail.pop(0) if self.fail else 200
        if status != 200:
            return _error(status, "not now")
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await self._stream(response, script, chat="messages" in body)
        await response.write_eof()
        return response

    async def _stream(
        self, response: web.StreamResponse, script: Sequence[Piece], *, chat: bool
    ) -> None:
        total = 0
        if chat:
            # Some servers open with the role alone, which is no token.
            await self._send(response, {"delta": {"role": "assistant", "content": ""}}, total)
        for delay, text, tokens in script:
            self.clock.now += delay
            total += tokens
            said = {"delta": {"content": text}} if chat else {"text": text}
            await self._send(response, said, total)
            if self.breaks:
                await response.write(b'data: {"error": {"message": "out of memory"}}\n\n')
                return
        last: dict[str, Any] = {"choices": [], **self.tail}
        if self.usage != "never":
            last["usage"] = {"prompt_tokens": 7, "completion_tokens": total}
        await response.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")

    async def _send(self, response: web.StreamResponse, choice: dict[str, Any], total: int) -> None:
        chunk: dict[str, Any] = {"choices": [{"index": 0, **choice}]}
        if self.usage == "each":
            chunk["usage"] = {"prompt_tokens": 7, "completion_tokens": total}
        self.clock.read.clear()
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await asyncio.wait_for(self.clock.read.wait(), timeout=20)

    @asynccontextmanager
    async def running(self):
        """Serve on a free port; `url` is then set."""
        app = web.Application()
        app.router.add_get("/v1/models", _models)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/v1/chat/completions", self.complete)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


async def _models(_: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "scripted"}]})


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)


def prompt(index: int, *turns: str, source: str = "file", category: str = "any") -> Prompt:
    return Prompt(source, index, category, turns or (f"question {index}",))


def answer_at(
    asked_at: float, *chunks: tuple[float, int], text: str = "x", **fields: Any
) -> Answer:
    """An answer whose chunks came at these times, with so many tokens each."""
    tokens = sum(count for _, count in chunks)
    fields = {"counting": Counting.EACH, **fields}
    return Answer(
        asked_at=asked_at,
        chunks=tuple(Chunk(at, count) for at, count in chunks),
        tokens=tokens,
        text=text,
        **fields,
    )
