"""What a target server tells over HTTP: is it there, does it take work, what does it count."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from outrider import __version__
from outrider.servers.target_sessions import Sessions
from outrider.serving import Envelope

__all__ = ["create_status_app"]


def create_status_app(sessions: Sessions) -> Starlette:
    """`/health`, `/ready`, `/metrics` and `/version` of the server that holds `sessions`."""

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(_: Request) -> Response:
        if sessions.draining:
            return JSONResponse({"status": "draining"}, status_code=503)
        return JSONResponse({"status": "ready"})

    async def metrics(_: Request) -> Response:
        content = generate_latest(sessions.metrics.registry)
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    async def version(_: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def hint(_: Request) -> Response:
        model = sessions.checks.info.model_id
        return Response(
            f"Outrider {__version__} runs target {model} over gRPC, on another port.\n\n"
            "GET  /health, /ready, /metrics, /version\n",
            media_type="text/plain",
        )

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics),
            Route("/version", version),
            Route("/", hint),
        ],
        middleware=[Middleware(Envelope, requests=sessions.metrics.requests)],
        exception_handlers={HTTPException: _pass_on},
    )
    app.router.redirect_slashes = False
    return app


async def _pass_on(_: Request, error: Exception) -> Response:
    """Leave it to the envelope, which has one form for all errors."""
    raise error
