"""The socket, the limits of connections, and the way down, with real processes."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from outrider.errors import ConfigError
from outrider.gateway import bind

from .serving import ScriptedTarget, scripted

pytestmark = pytest.mark.anyio

_SCRIPT = """
import asyncio, itertools, sys
from outrider.config import Settings
from outrider.gateway import bind, create_app, event_loop_factory, serve
from outrider.metrics import Metrics
from outrider.pipeline import Pipeline
from tests.gateway.serving import BYTE_MODEL, ScriptedTarget

steps, drain_s = int(sys.argv[1]), float(sys.argv[2])

async def main():
    settings = Settings(server={"drain_s": drain_s})
    target = ScriptedTarget(lambda _: [(120,)] * steps + [(256,)], delay_s=0.02)
    app = create_app(Pipeline(target, BYTE_MODEL, {}, settings, Metrics()), settings)
    sock = bind("127.0.0.1", 0)
    ready = lambda: print(sock.getsockname()[1], file=sys.stderr, flush=True)
    await serve(app, settings, sock=sock, on_ready=ready)

with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
    runner.run(main())
"""
"""A server whose outputs take `steps` times 20 ms. Its log goes to stdout, its port to stderr."""

BODY = {"model": "bytes", "prompt": "Hi", "max_tokens": 4000, "stream": True}


@asynccontextmanager
async def process(
    steps: int, drain_s: float
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _SCRIPT,
        str(steps),
        str(drain_s),
        cwd=Path(__file__).parents[2],
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert started.stderr is not None
    try:
        port = int(await asyncio.wait_for(started.stderr.readline(), 30))
        yield started, f"http://127.0.0.1:{port}"
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def collect(response: httpx.Response) -> bytes:
    return b"".join([part async for part in response.aiter_bytes()])


@pytest.mark.integration
async def test_sigterm_refuses_new_requests_finishes_streams_and_exits_cleanly() -> None:
    async with process(40, 10) as (server, url), httpx.AsyncClient(base_url=url) as client:
        async with client.stream("POST", "/v1/completions", json=BODY) as response:
            assert response.status_code == 200
            server.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            probe = await client.get("/ready")
            refused = await client.post("/v1/completions", json=BODY)
            alive = await client.get("/health")
            content = await collect(response)
        assert (probe.status_code, alive.status_code) == (503, 200)
        assert refused.status_code == 503
        assert refused.headers["connection"] == "close"
        assert refused.json()["error"]["code"] == "shutting_down"
        assert content.endswith(b"data: [DONE]\n\n")
        assert content.count(b'"text":"x"') == 40
        assert await asyncio.wait_for(server.wait(), 5) == 0


@pytest.mark.integration
async def test_a_stream_that_outlasts_the_drain_is_told_and_cut() -> None:
    async with process(4000, 0.3) as (server, url), httpx.AsyncClient(base_url=url) as client:
        async with client.stream("POST", "/v1/completions", json=BODY) as response:
            server.send_signal(signal.SIGTERM)
            content = await collect(response)
        assert b'data: {"error":' in content
        assert b"shutting down" in content
        assert b"[DONE]" not in content
        assert await asyncio.wait_for(server.wait(), 5) == 0


@pytest.mark.integration
async def test_a_second_interrupt_ends_at_once() -> None:
    async with (
        process(4000, 60) as (server, url),
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", "/v1/completions", json=BODY),
    ):
        server.send_signal(signal.SIGINT)
        await asyncio.sleep(0.3)
        assert server.returncode is None
        server.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(server.wait(), 3) == 0


@pytest.mark.integration
async def test_an_idle_server_ends_at_once() -> None:
    async with process(1, 60) as (server, _):
        server.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.wait(), 3) == 0


def test_a_port_in_use_is_named_with_the_remedy() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            bind("127.0.0.1", port)
    assert str(caught.value) == f"port {port} on 127.0.0.1 is in use; choose another with --port"


def test_a_host_that_is_none_is_named_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"no address 'no\.such\.host\.invalid'.*--host"):
        bind("no.such.host.invalid", 8000)


def test_an_address_of_another_machine_is_named_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1.*--host"):
        bind("192.0.2.1", 0)


def test_a_port_without_the_rights_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(ConfigError, match=r"port 80 on 127\.0\.0\.1 needs more rights.*--port"):
        bind("127.0.0.1", 80)


async def test_a_head_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["outrider.gateway.protocol"], "_HEADERS_S", 0.1)
    target = ScriptedTarget(lambda _: [(256,)])
    async with scripted(target, sockets=True) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"GET /health HTTP/1.1\r\nX-Slow: ")
        assert await asyncio.wait_for(reader.read(), 2) == b""
        writer.close()


async def test_a_head_that_is_huge_is_refused() -> None:
    target = ScriptedTarget(lambda _: [(256,)])
    async with scripted(target, sockets=True) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"GET /health HTTP/1.1\r\n" + b"X-Big: %b\r\n" % (b"x" * 1000) * 70)
        assert (await asyncio.wait_for(reader.read(), 2)).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_responses_do_not_name_the_server() -> None:
    target = ScriptedTarget(lambda _: [(256,)])
    async with scripted(target, sockets=True) as gateway:
        response = await gateway.client.get("/health")
    assert "server" not in response.headers
