"""Serving over sockets, and the way down, with real processes."""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from outrider.config import PeerSettings
from outrider.errors import ConfigError
from outrider.serving import Lifecycle, bind, serve
from tests.certificates import write_certificate

from .echo import echo, echoing

pytestmark = pytest.mark.anyio

_SCRIPT = """
import asyncio, sys
from outrider.serving import Lifecycle, bind, event_loop_factory, serve

lifecycle = Lifecycle()

async def hang(scope, receive, send):
    with lifecycle.request():
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await asyncio.Event().wait()

async def main():
    sock = bind("127.0.0.1", 0)
    ready = lambda: print(sock.getsockname()[1], flush=True)
    await serve(hang, sock, lifecycle, drain_s=60, on_ready=ready)

with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
    runner.run(main())
"""
"""A server that never finishes an answer, and prints its port."""


@asynccontextmanager
async def hanging() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _SCRIPT),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert started.stdout is not None
    try:
        port = int(await asyncio.wait_for(started.stdout.readline(), 30))
        yield started, f"http://127.0.0.1:{port}"
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


@pytest.mark.integration
async def test_an_idle_server_ends_at_once() -> None:
    async with hanging() as (server, _):
        server.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.wait(), 3) == 0


@pytest.mark.integration
async def test_a_second_interrupt_ends_at_once() -> None:
    async with (
        hanging() as (server, url),
        httpx.AsyncClient() as client,
        client.stream("GET", url) as response,
    ):
        assert response.status_code == 200
        server.send_signal(signal.SIGINT)
        await asyncio.sleep(0.3)
        assert server.returncode is None
        server.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(server.wait(), 3) == 0


async def test_responses_do_not_name_the_server() -> None:
    async with echoing() as port, httpx.AsyncClient() as client:
        response = await client.post(f"http://127.0.0.1:{port}/", json=1)
    assert response.json() == 1
    assert "server" not in response.headers


async def test_with_a_certificate_it_speaks_tls(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=str(cert))
    async with (
        echoing(PeerSettings(cert_file=cert, key_file=key)) as port,
        httpx.AsyncClient(verify=trusting) as client,
    ):
        assert (await client.post(f"https://127.0.0.1:{port}/", json=1)).json() == 1


async def test_peers_without_a_certificate_leave_it_plain() -> None:
    async with echoing(PeerSettings()) as port, httpx.AsyncClient() as client:
        assert (await client.post(f"http://127.0.0.1:{port}/", json=1)).json() == 1


async def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    cert.write_text("none")
    peers = PeerSettings(cert_file=cert, key_file=key)
    with pytest.raises(ConfigError, match=r"peers\.cert_file .*cert\.pem and its key cannot be"):
        await serve(echo, bind("127.0.0.1", 0), Lifecycle(), drain_s=1, tls=peers)
