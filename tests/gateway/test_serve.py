"""How the gateway is served, and its way down, with real processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.certificates import write_certificate

pytestmark = pytest.mark.anyio

_SCRIPT = """
import asyncio, itertools, sys
from outrider.config import Settings
from outrider.gateway import create_app
from outrider.metrics import Metrics
from outrider.pipeline import Pipeline
from outrider.serving import bind, event_loop_factory, serve
from tests.gateway.serving import BYTE_MODEL, ScriptedTarget

steps, drain_s = int(sys.argv[1]), float(sys.argv[2])

async def main():
    settings = Settings(server={"drain_s": drain_s})
    target = ScriptedTarget(lambda _: [(120,)] * steps + [(256,)], delay_s=0.02)
    app = create_app(Pipeline(target, BYTE_MODEL, {}, settings, Metrics()), settings)
    sock = bind("127.0.0.1", 0)
    ready = lambda: print(sock.getsockname()[1], file=sys.stderr, flush=True)
    await serve(app, sock, app.state.lifecycle, drain_s=drain_s, on_ready=ready)

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
async def test_the_certificate_of_peers_is_not_shown_to_the_gateways_callers(
    write_table: Callable[..., Path], tmp_path: Path
) -> None:
    cert, key = write_certificate(tmp_path)
    files = {"OUTRIDER_PEERS__CERT_FILE": str(cert), "OUTRIDER_PEERS__KEY_FILE": str(key)}
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "outrider", "run", "--port", "0", "--draft", "none"),
        *("--target", f"table:{write_table()}"),
        env=os.environ | files,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert started.stdout is not None
    try:
        said = await asyncio.wait_for(started.stdout.readline(), 30)
        found = re.search(r"http://\S+", said.decode())
        assert found is not None
        async with httpx.AsyncClient(base_url=found[0]) as client:
            assert (await client.get("/health")).json() == {"status": "ok"}
    finally:
        started.kill()
        await started.wait()
