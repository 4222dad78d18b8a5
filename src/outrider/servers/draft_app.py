"""The draft server as an ASGI app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from outrider import __version__
from outrider.config import Settings
from outrider.drafters.wire import JSON, MSGPACK, Lost, ProposeRequest, ReleaseRequest
from outrider.servers.draft_service import DraftService, SessionNotHeld
from outrider.servers.draft_sessions import Superseded
from outrider.serving import Bearer, Envelope, Lifecycle, decode, read_body, while_connected

__all__ = ["create_draft_app"]

_HINT: Final = """Outrider {version} drafts with {name}.

  curl {url}/v1/propose -H 'Content-Type: application/json' \\
    -d '{{"tokens": [1, 2, 3], "num_tokens": 4, "temperature": 0}}'

POST /v1/propose, /v1/release
GET  /v1/describe, /health, /ready, /metrics, /version
"""

_MEDIA_TYPES: Final = (JSON, MSGPACK)

_ENCODE: Final[dict[str, Callable[[Any], bytes]]] = {
    JSON: msgspec.json.Encoder().encode,
    MSGPACK: msgspec.msgpack.Encoder().encode,
}

_Decoder = msgspec.json.Decoder[Any] | msgspec.msgpack.Decoder[Any]


def _decoders(kind: type[Any]) -> dict[str, _Decoder]:
    return {JSON: msgspec.json.Decoder(kind), MSGPACK: msgspec.msgpack.Decoder(kind)}


_PROPOSE: Final = _decoders(ProposeRequest)
_RELEASE: Final = _decoders(ReleaseRequest)


def create_draft_app(service: DraftService, settings: Settings) -> Starlette:
    """The HTTP side of `service`. `app.state.lifecycle` is the handle for a graceful shutdown.

    Args:
        service: drafts; stays the caller's.
        settings: limits, and who may call.
    """
    handlers = _Handlers(service, settings)
    propose = handlers.posting(_PROPOSE, handlers.propose)
    release = handlers.posting(_RELEASE, handlers.release)
    app = Starlette(
        routes=[
            Route("/v1/propose", propose, methods=["POST"]),
            Route("/v1/release", release, methods=["POST"]),
            Route("/v1/describe", handlers.describe),
            Route("/health", handlers.health),
            Route("/ready", handlers.ready),
            Route("/metrics", handlers.metrics),
            Route("/version", handlers.version),
            Route("/", handlers.hint),
        ],
        middleware=[Middleware(Envelope, requests=service.metrics.requests)],
        exception_handlers={HTTPException: _pass_on},
    )
    app.router.redirect_slashes = False
    app.state.lifecycle = handlers.lifecycle
    return app


_Answer = Callable[[Any, str], Awaitable[tuple[int, bytes]]]


class _Posting:
    """A POST with a body, as plain ASGI: drafts are asked for hundreds of times a second."""

    def __init__(
        self,
        bearer: Bearer,
        lifecycle: Lifecycle,
        settings: Settings,
        decoders: dict[str, _Decoder],
        answer: _Answer,
    ) -> None:
        self._bearer = bearer
        self._lifecycle = lifecycle
        self._max_bytes = settings.draft_server.max_body_bytes
        self._decoders = decoders
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._bearer.check(scope)
        with self._lifecycle.request():
            body, media_type = await read_body(
                scope,
                receive,
                max_bytes=self._max_bytes,
                setting="draft_server.max_body_bytes",
                media_types=_MEDIA_TYPES,
            )
            value = decode(body, self._decoders[media_type])
            accepted = _accepted(Headers(scope=scope), media_type)
            with while_connected(receive):
                status, content = await self._answer(value, accepted)
        headers = [
            (b"content-type", accepted.encode()),
            (b"content-length", str(len(content)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


class _Handlers:
    def __init__(self, service: DraftService, settings: Settings) -> None:
        self.lifecycle = Lifecycle()
        self._service = service
        self._settings = settings
        self._bearer = Bearer(settings.peers)

    def posting(self, decoders: dict[str, _Decoder], answer: _Answer) -> _Posting:
        return _Posting(self._bearer, self.lifecycle, self._settings, decoders, answer)

    async def propose(self, value: ProposeRequest, accepted: str) -> tuple[int, bytes]:
        service = self._service
        try:
            return 200, _ENCODE[accepted](await service.propose(value))
        except SessionNotHeld as error:
            held = error.held
        except Superseded:
            session = service.sessions.get(value.session_id)
            held = 0 if session is None else len(session.tokens)
        return 409, _ENCODE[accepted](Lost(held, service.description.model_hash))

    async def release(self, value: ReleaseRequest, accepted: str) -> tuple[int, bytes]:
        await self._service.release(value.session_ids)
        return 200, _ENCODE[accepted]({})

    async def describe(self, request: Request) -> Response:
        self._bearer.check(request.scope)
        accepted = _accepted(request.headers, JSON)
        return Response(_ENCODE[accepted](self._service.description), media_type=accepted)

    async def health(self, _: Request) -> Response:
        """The process lives."""
        return _json({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """New requests are taken."""
        if self.lifecycle.draining:
            return _json({"status": "draining"}, status=503)
        return _json({"status": "ready"})

    async def metrics(self, _: Request) -> Response:
        content = generate_latest(self._service.metrics.registry)
        return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def version(self, _: Request) -> Response:
        return _json({"version": __version__})

    async def hint(self, request: Request) -> Response:
        url = f"{request.url.scheme}://{request.url.netloc}"
        name = self._service.description.name
        text = _HINT.format(version=__version__, name=name, url=url)
        return Response(text, media_type="text/plain")


def _accepted(headers: Headers, default: str) -> str:
    """What to answer in: what the client names, else `default`."""
    given = headers.get("accept", "")
    return next((media_type for media_type in _MEDIA_TYPES if media_type in given), default)


def _json(value: Any, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=JSON)


async def _pass_on(_: Request, error: Exception) -> Response:
    """Leave it to the envelope, which has one form for all errors."""
    raise error
