"""Clients that leave, crowd or dawdle, over real sockets."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from outrider.text import HFTokenizer

from .conftest import Serving
from .serving import Gateway, ScriptedTarget, scripted, until

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
LONG = {"model": "bytes", "prompt": "Hi", "max_tokens": 4000}
PROMPTLY_S = 0.1


def endless(delay_s: float = 0.003, gate: asyncio.Event | None = None) -> ScriptedTarget:
    return ScriptedTarget(lambda _: itertools.repeat((120,)), delay_s=delay_s, gate=gate)


@asynccontextmanager
async def sent(
    gateway: Gateway, body: dict[str, Any]
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A request on a connection of its own, closed with the context."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**20)
    content = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content)
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_stops_the_work_at_once(stream: bool, begun: bool) -> None:
    gate = asyncio.Event()
    target = endless(gate=gate)
    async with scripted(target, sockets=True) as gateway:
        if begun:
            gate.set()
        async with sent(gateway, LONG | {"stream": stream, "n": 2}) as (reader, _):
            await until(lambda: gateway.pipeline.occupancy()[0] == 2)
            if begun and stream:
                await reader.readuntil(b"data: ")
            elif begun:
                await asyncio.sleep(0.05)
            left_at = time.perf_counter()
        await until(gateway.at_rest)
        assert len(target.closed_at) == 2
        assert all(closed - left_at < PROMPTLY_S for closed in target.closed_at)
        counted = gateway.pipeline.metrics.registry.get_sample_value
        labels = {"endpoint": PATH, "status": "499"}
        await until(lambda: counted("outrider_requests_total", labels) == 1)


async def test_a_client_that_leaves_the_queue_leaves_no_trace() -> None:
    gate = asyncio.Event()
    target = endless(gate=gate)
    async with scripted(target, sockets=True, limits={"max_running": 1}) as gateway:
        async with sent(gateway, LONG):
            await until(lambda: gateway.gauge("outrider_running") == 1)
            async with sent(gateway, LONG):
                await until(lambda: gateway.gauge("outrider_queued") == 1)
            await until(lambda: gateway.gauge("outrider_queued") == 0)
            assert len(target.opened) == 1
        await until(gateway.at_rest)


async def test_streams_cut_at_random_leave_every_slot_free(table_gateway: Serving) -> None:
    draw = random.Random(3)
    limits = {"max_running": 16}

    async def one(gateway: Gateway, cut: bool) -> None:
        body = {"model": "target", "prompt": [0], "max_tokens": 300, "stream": True}
        async with sent(gateway, body) as (reader, _):
            if cut:
                await reader.read(draw.randint(1, 8000))
                return
            await reader.readuntil(b"data: [DONE]\n\n")

    async with table_gateway(sockets=True, limits=limits) as gateway:
        async with asyncio.TaskGroup() as group:
            for index in range(32):
                group.create_task(one(gateway, index % 3 == 0))
        await until(gateway.at_rest)
        again = {"model": "target", "prompt": [0], "max_tokens": 3, "n": 16}
        assert (await gateway.post(PATH, again)).status_code == 200
        assert gateway.at_rest()


async def test_a_flood_is_bounded_and_told_when_to_come_again() -> None:
    gate = asyncio.Event()
    target = ScriptedTarget(lambda _: [(120,), (256,)], gate=gate)
    limits = {"max_running": 2, "max_queued": 3}
    async with scripted(target, sockets=True, limits=limits) as gateway:
        tasks = [asyncio.create_task(gateway.post(PATH, LONG)) for _ in range(30)]
        refused = [task for task in tasks if task not in await _settled(tasks, 25)]
        assert gateway.gauge("outrider_running") == 2
        assert gateway.gauge("outrider_queued") == 3
        assert len(target.opened) == 2
        assert len(refused) == 5
        gate.set()
        replies = await asyncio.gather(*tasks)
        assert sorted(reply.status_code for reply in replies) == [200] * 5 + [429] * 25
        for reply in replies:
            if reply.status_code == 429:
                assert int(reply.headers["retry-after"]) >= 1
                assert reply.json()["error"]["type"] == "rate_limit_error"
        assert gateway.at_rest()


async def _settled(tasks: list[asyncio.Task[Any]], count: int) -> set[asyncio.Task[Any]]:
    await until(lambda: sum(task.done() for task in tasks) == count)
    return {task for task in tasks if task.done()}


async def test_requests_wait_in_the_order_they_came() -> None:
    gate = asyncio.Event()
    target = ScriptedTarget(lambda _: [(120,), (256,)], gate=gate)
    async with scripted(target, limits={"max_running": 1}) as gateway:
        tasks = []
        for letter in "abcde":
            body = {"model": "bytes", "prompt": letter}
            tasks.append(asyncio.create_task(gateway.post(PATH, body)))
            await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(*tasks)
    assert [bytes(request.prompt_ids) for request in target.opened] == [
        b"a",
        b"b",
        b"c",
        b"d",
        b"e",
    ]


async def test_a_slow_reader_stalls_nobody_and_keeps_no_slot() -> None:
    target = ScriptedTarget(lambda _: itertools.repeat((120,) * 16), delay_s=0.0005)
    async with scripted(target, sockets=True, limits={"max_running": 2}) as gateway:
        slow = socket.create_connection(("127.0.0.1", gateway.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        content = json.dumps(LONG | {"stream": True, "return_token_ids": True}).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        slow.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        await until(lambda: len(target.opened) == 1)
        started = time.perf_counter()
        for _ in range(3):
            body = LONG | {"max_tokens": 64}
            assert (await gateway.post(PATH, body)).status_code == 200
        assert time.perf_counter() - started < 1.0
        await until(gateway.at_rest, within_s=5)
        slow.setblocking(True)
        received = await asyncio.to_thread(_read_all, slow)
        assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def _read_all(sock: socket.socket) -> bytes:
    received = b""
    sock.settimeout(5)
    with sock:
        while not received.endswith(b"0\r\n\r\n"):
            received += sock.recv(65536)
    return received


async def test_a_large_prompt_is_tokenized_beside_running_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode: Callable[..., list[int]] = HFTokenizer.encode

    def slowly(self: HFTokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) > 8192:
            time.sleep(0.5)
        return encode(self, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(HFTokenizer, "encode", slowly)
    target = ScriptedTarget(lambda _: [(120,), (256,)])
    async with scripted(target) as gateway:
        large = asyncio.create_task(gateway.post(PATH, LONG | {"prompt": "x" * 9000}))
        await asyncio.sleep(0.05)
        started = time.perf_counter()
        assert (await gateway.post(PATH, LONG)).status_code == 200
        assert time.perf_counter() - started < 0.3
        assert (await large).status_code == 400
