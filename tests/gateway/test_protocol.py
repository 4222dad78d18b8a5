"""What arrives on the socket before it is a request: upgrades, nonsense, heads without end."""

from __future__ import annotations

import asyncio
import json

import pytest

from .conftest import Serving

pytestmark = pytest.mark.anyio

BODY = json.dumps({"model": "target", "prompt": [0, 1], "max_tokens": 4}).encode()
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
    b"Content-Length: " + str(len(BODY)).encode()
)


async def exchange(address: str, *parts: bytes) -> tuple[bytes, dict]:
    """Status line and JSON body of the answer to `parts`, sent one after another."""
    host, port = address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        body = await asyncio.wait_for(reader.readexactly(length), 10)
    finally:
        writer.close()
        await writer.wait_closed()
    return head.split(b"\r\n")[0], json.loads(body)


@pytest.mark.parametrize(
    "offer",
    [
        b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
        b"\r\nconnection: upgrade\r\nupgrade: websocket",
    ],
)
@pytest.mark.parametrize("together", [True, False])
async def test_an_offer_to_upgrade_is_ignored_and_the_body_kept(
    table_gateway: Serving, offer: bytes, together: bool
) -> None:
    head = HEAD + offer + b"\r\n\r\n"
    async with table_gateway(sockets=True) as gateway:
        parts = [head + BODY] if together else [head, BODY]
        status, answer = await exchange(gateway.url, *parts)
    assert status == b"HTTP/1.1 200 OK"
    assert answer["usage"]["completion_tokens"] == 4


async def test_a_body_that_speaks_of_upgrades_is_left_alone(table_gateway: Serving) -> None:
    text = "a\r\nUpgrade: h2c\r\n\r\nb"
    body = json.dumps({"model": "target", "prompt": text, "max_tokens": 4}).encode()
    raw = body.replace(b"\\r\\n", b"\r\n")  # no longer JSON, but what the server sees of it shows
    head = HEAD.rpartition(b" ")[0] + b" " + str(len(raw)).encode() + b"\r\n\r\n"
    async with table_gateway(sockets=True) as gateway:
        status, answer = await exchange(gateway.url, head, raw)
    assert status.startswith(b"HTTP/1.1 400")
    assert answer["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"hello\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 70_000 + b"\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_answered_in_openais_form(
    table_gateway: Serving, nonsense: bytes
) -> None:
    async with table_gateway(sockets=True) as gateway:
        status, answer = await exchange(gateway.url, nonsense)
    assert status == b"HTTP/1.1 400 Bad Request"
    assert answer["error"]["code"] == "invalid_http"
    assert set(answer["error"]) == {"message", "type", "param", "code"}
