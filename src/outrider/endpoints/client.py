"""The client: one server, its models, whole answers and streams; errors told with a remedy."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from outrider.endpoints.events import Event, Events
from outrider.endpoints.wire import Completion, Models, complaint, decode, one_line
from outrider.errors import ConfigError, OutriderError, RequestError, TargetFailed

__all__ = ["Endpoint", "Refused", "base_url", "connect"]

_MAX_RESPONSE_BYTES: Final = 8 * 1024 * 1024
_RETRIES: Final = 3
_MAX_WAITS: Final = 120  # for a busy server, per request
_MAX_WAIT_S: Final = 30.0
_READ_BYTES: Final = 64 * 1024
_BUSY: Final = 429
_REASON_CHARS: Final = 200
_DONE: Final = b"[DONE]"


class Refused(RequestError):
    """The server answered 400 or 422. `reason` is what it said."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def base_url(url: str) -> str:
    """`url` up to and with `/v1`. Raises `ConfigError` if it is no HTTP address."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise ConfigError(f"{url!r} is no address of a server; write http://HOST:PORT")
    trimmed = url.rstrip("/")
    return trimmed if trimmed.endswith("/v1") else f"{trimmed}/v1"


class Endpoint:
    """One OpenAI-compatible server. Made by `connect`.

    Attributes:
        url: with `/v1`.
        retries: requests that failed and were sent again; what the failed ones drew is lost.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, timeout_s: float) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self.url = url
        self.retries = 0

    async def only_model(self) -> str:
        """The id of the only model served.

        Raises:
            RequestError: there are several, or the server lists none, or one with an id that cannot
                be shown as it is.
            TargetFailed: the server cannot be reached, or fails.
        """
        try:
            content = await self._send("GET", "models", None, retries=0)
        except Refused as error:
            raise RequestError(f"{error}; name the model with --model") from None
        models = decode(content, Models)
        ids = models.ids if models is not None else []
        if len(ids) != 1:
            listed = (
                f"lists {len(ids)} models ({', '.join(ids[:5])[:200]})" if ids else "lists none"
            )
            raise RequestError(f"{self.url}/models {listed}; name one with --model")
        if models is not None and models.unfit:
            raise RequestError(
                f"{self.url}/models lists a model whose id is too long or holds control characters "
                f"({ids[0]!r}); name it with --model, or rename it"
            )
        return ids[0]

    async def complete(self, path: str, body: Mapping[str, Any]) -> Completion:
        """Samples from `path` (`completions` or `chat/completions`).

        Raises:
            Refused: the server does not take this request.
            RequestError: it does not know the model, or wants another key.
            TargetFailed: it cannot be reached, or went on failing.
        """
        content = await self._send("POST", path, body, retries=_RETRIES)
        completion = decode(content, Completion)
        if completion is None or not completion.choices:
            raise TargetFailed(
                f"{self.url}/{path} answered with no completion: {complaint(content)!r}; is it an "
                "OpenAI-compatible server?"
            )
        longest = max(len(choice.token_ids or ()) for choice in completion.choices)
        if longest > body["max_tokens"]:
            raise TargetFailed(
                f"{self.url}/{path} answered with {longest} tokens where at most "
                f"{body['max_tokens']} were asked for; does it honour max_tokens?"
            )
        return completion

    async def stream(
        self, path: str, body: Mapping[str, Any], clock: Callable[[], float]
    ) -> AsyncGenerator[Event]:
        """The events of a streamed answer, up to `[DONE]`. Nothing is asked for again.

        Args:
            path: `completions` or `chat/completions`.
            body: asks for a stream.
            clock: read once whenever bytes have come; events that came together have one time.

        Raises:
            Refused, RequestError, TargetFailed: as for `complete`; a busy server counts as failed.
        """
        url = f"{self.url}/{path}"
        try:
            async with self._session.request(
                "POST", url, json=body, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise self._failure(path, response.status, await _read(response, url))
                events, size, done = Events(), 0, False
                async for block in response.content.iter_any():
                    at = clock()
                    size = _bounded(size + len(block), url)
                    for data in () if done else events.feed(block):
                        # Read on to the end behind it, so that the connection can be used again.
                        done = done or data == _DONE
                        if not done:
                            yield Event(at, data)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise self._silence(url, error) from None

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, retries: int
    ) -> bytes:
        waits = 0
        while True:
            status, content, wait_s = await self._attempt(method, path, body, last=retries == 0)
            if status == 200:
                return content
            if status == _BUSY and waits < _MAX_WAITS:
                waits += 1
                await asyncio.sleep(wait_s if wait_s is not None else min(2.0**waits / 4, 8.0))
                continue
            if (status is None or status >= 500) and retries > 0:
                retries -= 1
                self.retries += 1
                await asyncio.sleep(0.5 * 2.0 ** (_RETRIES - 1 - retries))
                continue
            raise self._failure(path, status, content)

    async def _attempt(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, last: bool
    ) -> tuple[int | None, bytes, float | None]:
        """Status, content, and seconds to wait. No status if there was no answer to this attempt.

        Raises:
            TargetFailed: there was no answer to the last attempt, or it is too long.
        """
        url = f"{self.url}/{path}"
        try:
            # A redirect would carry the key to a server that nobody named.
            async with self._session.request(
                method, url, json=body, allow_redirects=False
            ) as response:
                content = await _read(response, url)
                return response.status, content, _retry_after_s(response)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            if last:
                raise self._silence(url, error) from None
        return None, b"", None

    def _silence(self, url: str, error: Exception) -> TargetFailed:
        """There was no answer, or no end of it."""
        if isinstance(error, TimeoutError):
            return TargetFailed(
                f"{url} did not answer within {self._timeout_s:g} s; is it overloaded? Try a "
                "longer --timeout or a smaller --concurrency"
            )
        return TargetFailed(f"cannot talk to {url}: {_reason(error)}; is the server running there?")

    def _failure(self, path: str, status: int | None, content: bytes) -> OutriderError:
        said = complaint(content)
        where = f"{self.url}/{path} answered {status}" + (f" ({said})" if said else "")
        match status:
            case 400 | 422:
                return Refused(where, said)
            case 401 | 403:
                return RequestError(f"{where}; give a key with --api-key or OPENAI_API_KEY")
            case 404:
                return RequestError(f"{where}; check the address, and the model with --model")
            case 429:
                return TargetFailed(f"{where} for too long; try a smaller --concurrency")
            case int() if 300 <= status < 400:
                return RequestError(f"{where}: a redirect; give the address that it leads to")
            case _:
                return TargetFailed(f"{where}; its own log should say why")


@asynccontextmanager
async def connect(
    *urls: str, api_key: str | None, timeout_s: float, concurrency: int
) -> AsyncIterator[list[Endpoint]]:
    """Endpoints for `urls` (see `base_url`), until the block ends."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    session = aiohttp.ClientSession(
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        connector=aiohttp.TCPConnector(limit=concurrency),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
    async with session:
        yield [Endpoint(session, base_url(url), timeout_s) for url in urls]


def _reason(error: Exception) -> str:
    """Why there is no connection, in the system's words where it has some."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.errno and cause.strerror:
        # aiohttp puts the address into strerror; the numbers of name look-ups are negative
        return os.strerror(cause.errno) if cause.errno > 0 else cause.strerror
    # A broken answer is quoted there.
    return one_line(" ".join(str(error).split()), _REASON_CHARS) or type(error).__name__


async def _read(response: aiohttp.ClientResponse, url: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_chunked(_READ_BYTES):
        parts.append(part)
        size = _bounded(size + len(part), url)
    return b"".join(parts)


def _bounded(size: int, url: str) -> int:
    if size > _MAX_RESPONSE_BYTES:
        raise TargetFailed(
            f"{url} answered with more than {_MAX_RESPONSE_BYTES} bytes; ask for less at a time"
        )
    return size


def _retry_after_s(response: aiohttp.ClientResponse) -> float | None:
    """Seconds that the server wants to be left alone; None if it does not say, or gives a date."""
    said = response.headers.get("Retry-After", "")
    return min(float(said), _MAX_WAIT_S) if said.isascii() and said.isdigit() else None
