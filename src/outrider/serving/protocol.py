"""HTTP as it arrives: uvicorn's parser, and what strangers may not do to it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from outrider.serving.failures import Failure

__all__ = ["Protocol"]

_HEADERS_S = 10.0
_MAX_HEADER_BYTES = 64 * 1024
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)


class Protocol(HttpToolsProtocol):
    """uvicorn's own protocol, with limits on the head of a request: its size and its time.

    An offer to upgrade the connection, as some clients make with every request (`Upgrade: h2c`), is
    ignored, as HTTP allows; the parser would take the body for the other protocol. What is no HTTP
    at all is answered in OpenAI's form.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Joined(transport, self.loop))  # type: ignore[arg-type] # it is as good
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(_without_upgrade(data) if self._in_head else data)

    def send_400_response(self, msg: str) -> None:
        self.transport.write(_NO_HTTP)
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._start_head_timer()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _MAX_HEADER_BYTES:
            raise ValueError("the head of the request is too large")

    def _start_head_timer(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(_HEADERS_S, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _Joined:
    """A transport that sends at once what is written in one turn of the event loop.

    An answer's head and body come in two writes, and would be two system calls here, and wake the
    client twice.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        data = b"".join(self._parts)
        self._parts.clear()
        if data and not self._transport.is_closing():
            self._transport.write(data)


def _without_upgrade(data: bytes) -> bytes:
    head, end, body = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"", head) + end + body


def _no_http() -> bytes:
    message = "this is not HTTP/1.1 with a head of at most 64 KiB; check the client and any proxy"
    body = Failure(400, message, "invalid_request_error", None, "invalid_http").body()
    head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


_NO_HTTP = _no_http()
