"""Streams of a server: what is read, and what is said when there is none."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing, asynccontextmanager

import msgspec
import pytest
from aiohttp import web

from outrider.endpoints import Chunk, Event, Refused, connect, decode
from outrider.errors import TargetFailed

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def serving(handler, *, timeout_s: float = 20.0):
    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with connect(url, api_key=None, timeout_s=timeout_s, concurrency=1) as [endpoint]:
            yield endpoint
    finally:
        await runner.cleanup()


async def read(endpoint) -> list[Event]:
    clock = itertools.count().__next__
    async with aclosing(endpoint.stream("completions", {}, clock)) as events:
        return [event async for event in events]


async def test_events_come_with_their_time_and_end_at_done() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=b"data: a\n\ndata: b\n\ndata: [DONE]\n\ndata: c\n\n")

    async with serving(handler) as endpoint:
        assert await read(endpoint) == [Event(0, b"a"), Event(0, b"b")]


async def test_a_connection_is_used_again_behind_a_stream() -> None:
    ports = set()

    async def handler(request: web.Request) -> web.Response:
        ports.add(request.transport.get_extra_info("peername")[1])
        return web.Response(body=b"data: [DONE]\n\n")

    async with serving(handler) as endpoint:
        await read(endpoint)
        await read(endpoint)
    assert len(ports) == 1


async def test_a_refusal_is_told_as_for_whole_answers() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no such thing"}}, status=400)

    async with serving(handler) as endpoint:
        with pytest.raises(Refused, match="no such thing"):
            await read(endpoint)


async def test_a_stream_that_is_cut_off_is_one_line() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "1000"})
        await response.prepare(request)
        await response.write(b"data: a\n\n")
        request.transport.abort()
        return response

    async with serving(handler) as endpoint:
        with pytest.raises(TargetFailed, match="cannot talk to") as caught:
            await read(endpoint)
    assert "\n" not in str(caught.value)


async def test_a_stream_that_stands_still_is_given_up() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"data: a\n\n")
        await asyncio.sleep(30)
        return response

    async with serving(handler, timeout_s=0.2) as endpoint:
        with pytest.raises(TargetFailed, match=r"within 0\.2 s"):
            await read(endpoint)


async def test_a_stream_without_end_is_given_up() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * (9 << 20))

    async with serving(handler) as endpoint:
        with pytest.raises(TargetFailed, match="more than 8388608 bytes"):
            await read(endpoint)


@pytest.mark.parametrize(
    ("delta", "text", "thought"),
    [
        ({"content": "a"}, "a", ""),
        ({"content": None, "reasoning_content": "b"}, "", "b"),
        ({"reasoning": "c"}, "", "c"),
    ],
)
def test_reasoning_is_told_from_the_answer(delta, text, thought) -> None:
    chunk = decode(msgspec.json.encode({"choices": [{"delta": delta}]}), Chunk)
    assert (chunk.text, chunk.thought) == (text, thought)
