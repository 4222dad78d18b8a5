"""Around every request: an id, errors as JSON, one line in the log, one count."""

from __future__ import annotations

import asyncio
import re
import time
import uuid

import structlog
from prometheus_client import Counter
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.serving.failures import ClientGone, failure_of

__all__ = ["Envelope"]

_SANE_ID = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,126}[\x21-\x7e])?")
_CLIENT_GONE = 499

_log = structlog.get_logger("outrider.serving")


class Envelope:
    """ASGI middleware.

    Args:
        app: what answers.
        requests: counts them by endpoint and status.
    """

    def __init__(self, app: ASGIApp, requests: Counter) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = _request_id(Headers(scope=scope).get("x-request-id"))
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": list(message.get("headers", []))}
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            except (ClientGone, asyncio.CancelledError) as error:
                status = _CLIENT_GONE
                if isinstance(error, asyncio.CancelledError):
                    raise
            except Exception as error:  # the last line: whatever it is, the client gets an answer
                if status is not None:
                    raise
                await _answer(error, scope, send_with_id)
            finally:
                self._count(scope, status or 500)
                _log.info(
                    "request",
                    method=scope["method"],
                    path=scope.get("raw_path", b"")[:200].decode("ascii", "replace"),
                    status=status or 500,
                    ms=round((time.perf_counter() - started) * 1000, 1),
                )

    def _count(self, scope: Scope, status: int) -> None:
        route = scope.get("route")
        # Labels come from a bounded set, never from what strangers send.
        self._requests.labels(getattr(route, "path", "other"), str(status)).inc()


async def _answer(error: Exception, scope: Scope, send: Send) -> None:
    failure = failure_of(error)
    if failure.status == 500:
        _log.error("internal_error", exc_info=error)
    elif failure.status > 500:
        _log.warning("request_failed", status=failure.status, reason=str(error))
    message = failure.message
    if isinstance(error, HTTPException) and failure.status in (404, 405):
        path = scope.get("raw_path", b"")[:200].decode("ascii", "replace")
        message = f"{scope['method']} {path} is not served here; GET / lists what is"
        failure = type(failure)(
            failure.status, message, failure.type, failure.param, failure.code, failure.headers
        )
    body = failure.body()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.lower().encode(), value.encode()) for name, value in failure.headers.items()),
    ]
    await send({"type": "http.response.start", "status": failure.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _request_id(given: str | None) -> str:
    """The client's own id if it is printable and short, else a new one."""
    if given is not None and _SANE_ID.fullmatch(given):
        return given
    return uuid.uuid4().hex
