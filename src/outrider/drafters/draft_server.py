"""One draft server, seen from outside. What it answers is not trusted."""

from __future__ import annotations

import os
from typing import Any, Final, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from outrider.drafters.breaker import Breaker
from outrider.drafters.pace import Pace
from outrider.drafters.wire import (
    JSON,
    MSGPACK,
    Description,
    Lost,
    ProposeRequest,
    ReleaseRequest,
)
from outrider.endpoints import complaint
from outrider.errors import DraftFailed

__all__ = ["Busy", "DraftServer", "OurFault", "SessionGone"]

_MAX_BYTES: Final = 64 * 1024
_MAX_HASH: Final = 200
_OUR_FAULT: Final = frozenset({400, 408, 413, 415, 422})

T = TypeVar("T")


class OurFault(DraftFailed):
    """The server does not take this request; others may be fine."""


class Busy(DraftFailed):
    """The server has no room now."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SessionGone(Exception):
    """The server does not hold as many tokens of the session as was thought."""

    def __init__(self, lost: Lost) -> None:
        super().__init__(f"the draft server holds {lost.held} tokens of the session")
        self.held = lost.held
        self.model_hash = lost.model_hash


class _Tokens(Struct):
    """What is read of a draft; all else in it is ignored."""

    tokens: list[int]


_ENCODE: Final = msgspec.msgpack.Encoder().encode


class DraftServer:
    """Asks one server. Nothing here has a deadline.

    Args:
        url: up to and with `/v1`.
        name: for messages.
        most_s: longest deadline of its drafts.

    Attributes:
        name, url: as given.
        breaker: whether it may be called.
        pace: how long its drafts take.
        description: what it said of itself; None if it was not asked yet, or knows the plain form
            alone.
        plain: it knows the plain form alone.
        sessions: how many are placed here.
    """

    def __init__(self, url: str, name: str, *, most_s: float) -> None:
        self.url = url
        self.name = name
        self.breaker = Breaker(name)
        self.pace = Pace(most_s)
        self.description: Description | None = None
        self.plain = False
        self.sessions = 0

    async def describe(self, http: aiohttp.ClientSession) -> Description | None:
        """What the server is; None if it knows the plain form alone.

        Raises:
            DraftFailed: it cannot be reached, or talks nonsense.
        """
        status, kind, content = await self._send(http, "GET", "describe", None)
        if status == 404:
            return None
        self._check(status, content, "describe")
        said = self._decode(content, kind, Description)
        if len(said.model_hash) > _MAX_HASH or said.context_length < 1 or said.max_tokens < 1:
            raise DraftFailed(f"draft server {self.name} describes itself with impossible values")
        return said

    async def propose(self, http: aiohttp.ClientSession, request: ProposeRequest) -> list[int]:
        """The tokens of a draft, at most as many as were asked for.

        Raises:
            SessionGone: it holds less of the session.
            DraftFailed: no draft; `OurFault` and `Busy` are no failures of the server.
        """
        status, kind, content = await self._send(http, "POST", "propose", request)
        if status == 409:
            raise SessionGone(self._decode(content, kind, Lost))
        self._check(status, content, "propose")
        tokens = self._decode(content, kind, _Tokens).tokens
        if len(tokens) > request.num_tokens:
            raise DraftFailed(
                f"draft server {self.name} answered with {len(tokens)} tokens where at most "
                f"{request.num_tokens} were asked for"
            )
        return tokens

    async def release(self, http: aiohttp.ClientSession, names: list[str]) -> None:
        """Have it forget sessions. Raises `DraftFailed`."""
        status, _, content = await self._send(http, "POST", "release", ReleaseRequest(names))
        self._check(status, content, "release")

    async def _send(
        self, http: aiohttp.ClientSession, method: str, path: str, body: Struct | None
    ) -> tuple[int, str, bytes]:
        """Status, content type and content; again if a connection from the pool was closed."""
        try:
            return await self._send_once(http, method, path, body)
        except aiohttp.ClientError as error:
            if not _closed(error):
                raise self._silence(error) from None
        try:
            return await self._send_once(http, method, path, body)
        except aiohttp.ClientError as error:
            raise self._silence(error) from None

    async def _send_once(
        self, http: aiohttp.ClientSession, method: str, path: str, body: Struct | None
    ) -> tuple[int, str, bytes]:
        data, headers = None, {"Accept": MSGPACK}
        if body is not None:
            kind = JSON if self.plain else MSGPACK
            data = msgspec.json.encode(body) if self.plain else _ENCODE(body)
            headers = {"Accept": kind, "Content-Type": kind}
        # A redirect would carry the token to a server that nobody named.
        async with http.request(
            method, f"{self.url}/{path}", data=data, headers=headers, allow_redirects=False
        ) as response:
            if "Content-Encoding" in response.headers:
                raise DraftFailed(f"draft server {self.name} answered with a packed body")
            content = await response.content.read(_MAX_BYTES)
            while not response.content.at_eof():
                content += await response.content.read(_MAX_BYTES)
                if len(content) > _MAX_BYTES:
                    raise DraftFailed(
                        f"draft server {self.name} answered with more than {_MAX_BYTES} bytes"
                    )
            retry_after = response.headers.get("Retry-After", "")
            if response.status == 429:
                wait_s = float(retry_after) if retry_after.isdecimal() else 1.0
                raise Busy(f"draft server {self.name} has no room now", wait_s)
            return response.status, response.headers.get("Content-Type", ""), content

    def _check(self, status: int, content: bytes, path: str) -> None:
        if status == 200:
            return
        said = complaint(content)
        where = f"draft server {self.name} answered {path} with {status}" + (
            f" ({said})" if said else ""
        )
        if status in _OUR_FAULT:
            raise OurFault(where)
        if status in (401, 403):
            raise DraftFailed(f"{where}; set the same peers.token on both sides")
        if 300 <= status < 400:
            raise DraftFailed(f"{where}: a redirect; give the address that it leads to")
        raise DraftFailed(where)

    def _decode(self, content: bytes, media_type: str, kind: type[T]) -> T:
        declared = media_type.partition(";")[0].strip().lower()
        try:
            if declared == MSGPACK:
                return msgspec.msgpack.decode(content, type=kind)
            if declared == JSON:
                return msgspec.json.decode(content, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise DraftFailed(
                f"draft server {self.name} answered with something else than was asked for; is it "
                "a draft server?"
            ) from None
        raise DraftFailed(
            f"draft server {self.name} answered with Content-Type {declared[:80]!r}, not {MSGPACK}"
        )

    def _silence(self, error: aiohttp.ClientError) -> DraftFailed:
        cause: Any = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        number = cause.errno if isinstance(cause, OSError) else None
        reason = os.strerror(number) if number and number > 0 else type(error).__name__
        return DraftFailed(f"cannot talk to draft server {self.name}: {reason}")


def _closed(error: aiohttp.ClientError) -> bool:
    """Whether a connection broke that stood, as one from the pool may that was idle."""
    broke = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
    return broke and not isinstance(error, aiohttp.ClientConnectorError)
