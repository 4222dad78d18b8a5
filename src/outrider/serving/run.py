"""Running an app: uvicorn, signals, and the way down."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable
from types import FrameType
from typing import Protocol as Contract

import uvicorn
from starlette.types import ASGIApp

from outrider.config import PeerSettings
from outrider.errors import ConfigError
from outrider.serving.protocol import Protocol
from outrider.serving.sockets import BACKLOG

__all__ = ["Drains", "serve"]

_KEEP_ALIVE_S = 30
_LAST_WRITES_S = 2
"""Seconds that connections get to take the last bytes, once their requests ended."""


class Drains(Contract):
    """Whatever has requests under way."""

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new; return when all is done, or cut short after `timeout_s`."""
        ...

    def abort(self) -> None:
        """Cut short what runs."""
        ...


async def serve(
    app: ASGIApp,
    sock: socket.socket,
    lifecycle: Drains,
    *,
    drain_s: float,
    tls: PeerSettings | None = None,
    keep_alive_s: int = _KEEP_ALIVE_S,
    on_ready: Callable[[], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve `app` until SIGTERM, Ctrl-C or `stop`.

    Then the lifecycle drains: readiness should fail and new requests be refused with 503; running
    ones finish within `drain_s` and are cut short after. A second Ctrl-C cuts them short at once.
    Signals are handled in the main thread only.

    Args:
        app: answers.
        sock: from `bind`.
        lifecycle: what it has under way.
        drain_s: see above.
        tls: names the certificate to show, if any; None speaks plain HTTP.
        keep_alive_s: seconds that an idle connection stays open.
        on_ready: called once requests are taken.
        stop: set it to end as SIGTERM would.

    Raises:
        ConfigError: the certificate or its key cannot be used.
    """
    files = tls if tls is not None and tls.cert_file is not None else None
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=_LAST_WRITES_S,
        ssl_certfile=files.cert_file if files else None,
        ssl_keyfile=files.key_file if files else None,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        sock.close()
        raise ConfigError(
            f"peers.cert_file {files.cert_file if files else None} and its key cannot be used: "
            f"{error}; both must be PEM files that belong together"
        ) from None
    server = _Server(config, lifecycle, drain_s, on_ready)
    waiter = asyncio.create_task(_stop_when_set(server, stop)) if stop is not None else None
    try:
        await server.serve([sock])
    finally:
        if waiter is not None:
            waiter.cancel()


async def _stop_when_set(server: _Server, stop: asyncio.Event) -> None:
    await stop.wait()
    server.begin_shutdown()


class _Server(uvicorn.Server):
    """Drains before it closes its socket, so that probes and clients get an answer meanwhile."""

    def __init__(
        self,
        config: uvicorn.Config,
        lifecycle: Drains,
        drain_s: float,
        on_ready: Callable[[], None] | None,
    ) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._drain_s = drain_s
        self._on_ready = on_ready
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started and self._on_ready is not None:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGINT and self._draining is not None:
            self._loop.call_soon_threadsafe(self._cut_short)
        else:
            self._loop.call_soon_threadsafe(self.begin_shutdown)

    def begin_shutdown(self) -> None:
        """Start draining; the server exits when that is done."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        try:
            await self._lifecycle.drain(self._drain_s)
        finally:  # whatever happens, a server that was told to end ends
            self.should_exit = True

    def _cut_short(self) -> None:
        self._lifecycle.abort()
        self.should_exit = True
        self.force_exit = True
