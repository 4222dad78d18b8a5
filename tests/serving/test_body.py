"""Bodies: what they are declared as, their size and time, and what is wrong in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import httpx
import msgspec
import pytest
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope

from outrider.errors import RequestError
from outrider.serving import ClientGone, decode, read_body

from .echo import MAX_BYTES, echoing

pytestmark = pytest.mark.anyio

JSON = b"application/json"
PACKED = b"application/msgpack"


def scope(kind: bytes) -> Scope:
    return {"type": "http", "headers": [(b"content-type", kind)]}


def arriving(*messages: dict[str, Any]) -> Receive:
    left = list(messages)

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    return receive


def piece(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_the_pieces_are_joined_and_the_media_type_is_told() -> None:
    kinds = ("application/json", "application/msgpack")
    for kind in (PACKED, b"Application/MsgPack; charset=x"):
        receive = arriving(piece(b"a", more=True), piece(b"b"))
        read = await read_body(scope(kind), receive, max_bytes=2, media_types=kinds)
        assert read == (b"ab", "application/msgpack")


@pytest.mark.parametrize("kind", [b"text/plain", b"application/x-www-form-urlencoded", b"", PACKED])
async def test_a_body_not_declared_as_what_is_taken_is_refused(kind: bytes) -> None:
    with pytest.raises(HTTPException, match="send application/json") as caught:
        await read_body(scope(kind), arriving(piece(b"{}")), max_bytes=10)
    assert caught.value.status_code == 415


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_too_large_is_refused_in_words_the_client_gets_to_read(declared: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 65536

    content: Any = b" " * 40 * 65536 if declared else pieces()
    async with echoing() as port, httpx.AsyncClient() as client:
        headers = {"Content-Type": "application/json"}
        response = await client.post(f"http://127.0.0.1:{port}/", content=content, headers=headers)
    assert response.status_code == 413
    assert f"{MAX_BYTES} bytes" in response.json()["error"]["message"]
    assert response.headers["connection"] == "close"


async def test_a_body_that_does_not_arrive_in_time_is_refused() -> None:
    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(HTTPException) as caught:
        await read_body(scope(JSON), never, max_bytes=10, timeout_s=0.01)
    assert caught.value.status_code == 408


async def test_a_client_that_leaves_within_its_body_is_gone() -> None:
    receive = arriving(piece(b"{", more=True), {"type": "http.disconnect"})
    with pytest.raises(ClientGone):
        await read_body(scope(JSON), receive, max_bytes=10)


class Point(msgspec.Struct, forbid_unknown_fields=True):
    x: int
    tags: list[str] = []


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b'{"x": "\xff"}', "not valid JSON"),
        (b'{"x": NaN}', "not valid JSON"),
        (rb'{"x": "\ud83d"}', "half of a surrogate pair"),
        (rb'{"x": "\ude42 a"}', "half of a surrogate pair"),
        (deep(100_000), "nested too deeply; send flatter JSON"),
    ],
)
def test_what_is_no_json_is_told(body: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        decode(body, msgspec.json.Decoder(Any))
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid msgpack"),
        (b"\xc1", "not valid msgpack"),
        (b"\xa1\xff", "not valid msgpack"),
        (b"\x91" * 100_000, "nested too deeply; send flatter msgpack"),
    ],
)
def test_what_is_no_msgpack_is_told(body: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        decode(body, msgspec.msgpack.Decoder(Any))
    assert caught.value.code == "invalid_msgpack"


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack])
@pytest.mark.parametrize(
    ("value", "param", "code", "words"),
    [
        ([], None, "invalid_type", "must be a JSON object"),
        ({}, "x", "missing_field", "x is missing"),
        ({"x": 1, "y": 2}, "y", "unknown_field", "y is not a field"),
        ({"x": "a"}, "x", "invalid_type", 'x is "a": expected int'),
        ({"x": 1, "tags": ["a", 7]}, "tags[1]", "invalid_type", r"tags\[1\] is 7: expected str"),
        ({"x": "a" * 200}, "x", "invalid_type", r'x is "a{76}\.\.\.: '),
        ({"x": 1, "a\nb": 2}, "a\nb", "unknown_field", r"'a\\nb' is not a field"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_place(
    codec: ModuleType, value: Any, param: str | None, code: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        decode(codec.encode(value), codec.Decoder(Point))
    assert (caught.value.param, caught.value.code) == (param, code)
    assert "\n" not in str(caught.value)
