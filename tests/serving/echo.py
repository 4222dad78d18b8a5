"""A small server under test: it says back the JSON it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.config import PeerSettings
from outrider.serving import Envelope, Lifecycle, bind, decode, read_body, serve

MAX_BYTES = 4096

_DECODER = msgspec.json.Decoder(Any)


def counted(app: ASGIApp) -> tuple[ASGIApp, CollectorRegistry]:
    """`app` in its envelope, and where that counts."""
    registry = CollectorRegistry()
    requests = Counter("requests", "Requests.", ["endpoint", "status"], registry=registry)
    return Envelope(app, requests), registry


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body, _ = await read_body(scope, receive, max_bytes=MAX_BYTES)
    content = msgspec.json.encode(decode(body, _DECODER))
    headers = [(b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


@asynccontextmanager
async def echoing(tls: PeerSettings | None = None) -> AsyncIterator[int]:
    """Serve `echo`; gives the port on this machine."""
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    ready, stop = asyncio.Event(), asyncio.Event()
    app, _ = counted(echo)
    task = asyncio.create_task(
        serve(app, sock, Lifecycle(), drain_s=5, tls=tls, on_ready=ready.set, stop=stop)
    )
    await ready.wait()
    try:
        yield port
    finally:
        stop.set()
        await task
