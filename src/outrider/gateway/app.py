"""The gateway as an ASGI app."""

from __future__ import annotations

from typing import NoReturn

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request

from outrider.config import Settings
from outrider.gateway.admission import Admission
from outrider.gateway.routes import create_routes
from outrider.gateway.service import Service
from outrider.pipeline import Pipeline
from outrider.serving import Envelope, Lifecycle
from outrider.text import ChatTemplate, create_tokenizer

__all__ = ["create_app"]


def create_app(pipeline: Pipeline, settings: Settings) -> Starlette:
    """The OpenAI-compatible API over `pipeline`.

    The pipeline stays the caller's, who closes it once nothing is served any more.
    `app.state.lifecycle` is the handle for a graceful shutdown.

    Args:
        pipeline: decodes; its registry takes the app's counts.
        settings: limits.

    Raises:
        CorruptModel: the target's tokenizer cannot be read.
    """
    info = pipeline.info
    limits = settings.limits
    use = pipeline.cache_use()
    service = Service(
        pipeline=pipeline,
        settings=settings,
        tokenizer=create_tokenizer(info),
        template=ChatTemplate(info.chat_template, info.special_tokens),
        admission=Admission(
            # More would only be refused by the target, where nobody can wait.
            max_running=min(limits.max_running, pipeline.occupancy()[1]),
            max_queued=limits.max_queued,
            max_tokens=None if use is None else use.tokens,  # likewise
            metrics=pipeline.metrics,
        ),
        lifecycle=Lifecycle(),
    )

    app = Starlette(
        routes=create_routes(service),
        middleware=[Middleware(Envelope, requests=pipeline.metrics.requests)],
        exception_handlers={HTTPException: _pass_on},
    )
    app.router.redirect_slashes = False
    app.state.lifecycle = service.lifecycle
    return app


async def _pass_on(_: Request, error: Exception) -> NoReturn:
    """Leave it to the envelope, which has one form for all errors."""
    raise error
