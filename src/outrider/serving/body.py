"""Reading a request's body within limits of size and time, and decoding it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope

from outrider.errors import RequestError
from outrider.serving.failures import ClientGone

__all__ = ["BODY_S", "decode", "read_body"]

BODY_S = 30.0
"""Seconds within which the whole body must have come."""

_LINGER_S = 2.0

_T = TypeVar("_T")
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]"
)
_PART = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_CLOSE = {"Connection": "close"}


async def read_body(
    scope: Scope,
    receive: Receive,
    *,
    max_bytes: int,
    setting: str = "limits.max_body_bytes",
    media_types: Sequence[str] = ("application/json",),
    timeout_s: float = BODY_S,
) -> tuple[bytes, str]:
    """The whole body, and which of `media_types` it is declared as.

    `setting` is what sets `max_bytes`, for the message.

    Raises:
        HTTPException: not declared as one of them (415), too large (413) or too slow (408).
        ClientGone: the client closed the connection.
    """
    headers = Headers(scope=scope)
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in media_types:
        # Also keeps web pages from using a server on their reader's machine behind his back.
        raise HTTPException(
            415,
            f"Content-Type is {media_type[:80]!r}; send {' or '.join(media_types)}",
            headers=_CLOSE,
        )
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) > max_bytes:
        await _discard(receive)
        raise _too_large(f"{length[:20]} bytes", max_bytes, setting)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                body += message.get("body", b"")
                if len(body) > max_bytes:
                    break
                if not message.get("more_body", False):
                    return bytes(body), media_type
    except TimeoutError:
        raise HTTPException(
            408, f"the body did not arrive within {timeout_s:g} s; send it again", headers=_CLOSE
        ) from None
    await _discard(receive)
    raise _too_large("longer", max_bytes, setting)


def _too_large(size: str, max_bytes: int, setting: str) -> HTTPException:
    message = f"the body is {size}; at most {max_bytes} bytes are taken ({setting})"
    return HTTPException(413, message, headers=_CLOSE)


async def _discard(receive: Receive) -> None:
    """Read on a moment: a client that still sends when we close would never see the answer."""
    try:
        async with asyncio.timeout(_LINGER_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def decode(body: bytes, decoder: msgspec.json.Decoder[_T] | msgspec.msgpack.Decoder[_T]) -> _T:
    """The request in `body`, which is JSON or msgpack as the decoder is.

    Raises:
        RequestError: not of that format, or not of the expected form; the message names place and
            value.
    """
    packed = isinstance(decoder, msgspec.msgpack.Decoder)
    code, name = ("invalid_msgpack", "msgpack") if packed else ("invalid_json", "JSON")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(body, str(error), msgspec.msgpack if packed else msgspec.json) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error)
        if not packed and _LONE_SURROGATE.search(body):
            reason = "it has half of a surrogate pair; send whole characters"
        raise RequestError(f"the body is not valid {name}: {reason}", code=code) from None
    except RecursionError:
        raise RequestError(
            f"the body is nested too deeply; send flatter {name}", code=code
        ) from None


def _invalid(body: bytes, message: str, codec: ModuleType) -> RequestError:
    what, _, where = message.rpartition(" - at `$") if " - at `$" in message else (message, "", "")
    path = where.rstrip("`").lstrip(".").removesuffix("[...]")  # the value at some key
    expected = what.replace("`", "")
    if match := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        field = f"{path}.{match[1]}" if path else match[1]
        return RequestError(
            f"{_shown(field)} is not a field that this server knows; leave it out",
            param=field[:200],
            code="unknown_field",
        )
    if match := re.fullmatch(r"Object missing required field `(.*)`", what, re.DOTALL):
        field = f"{path}.{match[1]}" if path else match[1]
        return RequestError(f"{field} is missing", param=field, code="missing_field")
    expected = expected[:1].lower() + expected[1:]
    if not path:
        return RequestError(f"the body must be a JSON object: {expected}", code="invalid_type")
    parts = [name or int(index) for name, index in _PART.findall(f".{path}")]
    value = _value_at(body, parts, codec)
    return RequestError(f"{path} is {value}: {expected}", param=path, code="invalid_type")


def _value_at(body: bytes, path: Sequence[str | int], codec: ModuleType) -> str:
    """The JSON of the value that was refused, shortened."""
    try:
        value: Any = codec.decode(body)
        for part in path:
            value = value[part]
        text = msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, ValueError, RecursionError, LookupError, TypeError):
        return "out of range"  # the only value that is valid JSON and yet cannot be read
    return text if len(text) <= 80 else f"{text[:77]}..."


def _shown(name: str) -> str:
    """A field's name as part of a line; one with odd characters, or none, is quoted."""
    plain = re.fullmatch(r"[\w.\[\]-]{1,200}", name, re.ASCII)
    return name if plain else ascii(name[:200])
