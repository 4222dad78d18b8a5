"""Listening sockets, and the event loop that serves them."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Callable
from typing import Final

from outrider.errors import ConfigError

__all__ = ["BACKLOG", "bind", "event_loop_factory"]

BACKLOG: Final = 2048

_STALLED_MS: Final = 120_000


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
        sock.listen(BACKLOG)
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
