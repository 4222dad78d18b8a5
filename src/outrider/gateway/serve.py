"""Running the app: the socket, uvicorn, signals, and the way down."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from outrider.config import Settings
from outrider.errors import ConfigError
from outrider.gateway.protocol import Protocol
from outrider.gateway.service import Lifecycle

__all__ = ["bind", "event_loop_factory", "serve"]

_BACKLOG = 2048
_KEEP_ALIVE_S = 30
_STALLED_MS = 120_000
_LAST_WRITES_S = 2
"""Seconds that connections get to take the last bytes, once their requests ended."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything heavy is loaded. Port 0 lets the system choose.

    Raises:
        ConfigError: the address cannot be used; the message says why and what would do.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise ConfigError(
            f"there is no address {host!r} on this machine; choose another with --host"
        ) from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _drop_dead_peers(sock)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except PermissionError:
        sock.close()
        raise ConfigError(
            f"port {port} on {host} needs more rights; choose one above 1023 with --port"
        ) from None
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} on {host} is in use; choose another with --port"
        else:
            message = f"cannot listen on {host} ({error.strerror}); choose another with --host"
        raise ConfigError(message) from None
    sock.setblocking(False)
    return sock


def _drop_dead_peers(sock: socket.socket) -> None:
    """Connections inherit it: a peer that is gone, or takes no data at all, is dropped in time."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STALLED_MS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """For `asyncio.Runner`: uvloop where it is installed, else None for Python's own loop."""
    try:
        import uvloop  # noqa: PLC0415 # optional
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(
    app: Starlette,
    settings: Settings,
    sock: socket.socket | None = None,
    *,
    on_ready: Callable[[], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve `app` until SIGTERM, Ctrl-C or `stop`.

    Then readiness fails and new requests are refused with 503; running ones finish within
    `server.drain_s` and are cut short after. A second Ctrl-C cuts them short at once. Signals are
    handled in the main thread only.

    Args:
        app: from `create_app`.
        settings: where to listen, how long to drain.
        sock: from `bind`; None binds now.
        on_ready: called once requests are taken.
        stop: set it to end as SIGTERM would.

    Raises:
        ConfigError: the address cannot be used.
    """
    if sock is None:
        sock = bind(settings.server.host, settings.server.port)
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_LAST_WRITES_S,
    )
    server = _Server(config, app.state.lifecycle, settings.server.drain_s, on_ready)
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
        lifecycle: Lifecycle,
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
        await self._lifecycle.drain(self._drain_s)
        self.should_exit = True

    def _cut_short(self) -> None:
        self._lifecycle.abort()
        self.should_exit = True
        self.force_exit = True
