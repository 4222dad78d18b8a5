"""What arrives on the socket before it is a request: upgrades, nonsense, heads without end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from outrider.serving import protocol

from .echo import echoing

pytestmark = pytest.mark.anyio

BODY = b'{"say": [1, 2]}'


def head(size: int) -> bytes:
    return (
        b"POST / HTTP/1.1\r\nHost: server\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d" % size
    )


async def exchange(port: int, *parts: bytes) -> tuple[bytes, Any]:
    """Status line and JSON body of the answer to `parts`, sent one after another."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        body = await asyncio.wait_for(reader.readexactly(length), 10)
    finally:
        writer.close()
        await writer.wait_closed()
    return answer.split(b"\r\n")[0], json.loads(body)


@pytest.mark.parametrize(
    "offer",
    [
        b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
        b"\r\nconnection: upgrade\r\nupgrade: websocket",
    ],
)
@pytest.mark.parametrize("together", [True, False])
async def test_an_offer_to_upgrade_is_ignored_and_the_body_kept(
    offer: bytes, together: bool
) -> None:
    first = head(len(BODY)) + offer + b"\r\n\r\n"
    async with echoing() as port:
        parts = [first + BODY] if together else [first, BODY]
        status, answer = await exchange(port, *parts)
    assert status == b"HTTP/1.1 200 OK"
    assert answer == json.loads(BODY)


async def test_a_body_that_speaks_of_upgrades_is_left_alone() -> None:
    raw = b'"a\r\nUpgrade: h2c\r\n\r\nb"'  # no JSON, but what the server sees of it shows
    async with echoing() as port:
        status, answer = await exchange(port, head(len(raw)) + b"\r\n\r\n", raw)
    assert status.startswith(b"HTTP/1.1 400")
    assert answer["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"hello\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-Big: %b\r\n" % (b"x" * 1000) * 70,
    ],
)
async def test_what_is_no_http_is_answered_in_openais_form(nonsense: bytes) -> None:
    async with echoing() as port:
        status, answer = await exchange(port, nonsense)
    assert status == b"HTTP/1.1 400 Bad Request"
    assert answer["error"]["code"] == "invalid_http"
    assert set(answer["error"]) == {"message", "type", "param", "code"}


async def test_a_head_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_HEADERS_S", 0.1)
    async with echoing() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert await asyncio.wait_for(reader.read(), 2) == b""
        writer.close()
