"""The paths, and the handlers of all but the completions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from outrider import __version__
from outrider.errors import RequestError
from outrider.gateway.completions import Completions
from outrider.gateway.prepare import Job, prepare_chat, prepare_completion
from outrider.gateway.prompts import chat_prompt, encode, off_loop
from outrider.gateway.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from outrider.gateway.service import Service
from outrider.serving import decode, read_body
from outrider.targets import CacheUse

__all__ = ["create_routes"]

_HINT = """Outrider {version} serves {model} over the OpenAI API.

curl -s http://{host}/v1/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "prompt": "...", "max_tokens": 32}}'

POST /v1/chat/completions, /v1/completions, /tokenize, /detokenize
GET  /v1/models, /health, /ready, /metrics, /version
"""

_CACHE_GAUGES: tuple[tuple[str, str, Callable[[CacheUse], int]], ...] = (
    ("budget", "Memory for keys and values.", lambda use: use.budget_bytes),
    ("used", "Keys and values of running sessions.", lambda use: use.used_bytes),
    (
        "retained",
        "Keys and values of ended sessions, kept for later ones until room is needed.",
        lambda use: use.retained_bytes,
    ),
)

_CHAT = msgspec.json.Decoder(ChatRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


def create_routes(service: Service) -> list[Route]:
    """The routes of the app."""

    async def chat(body: bytes) -> Job:
        return await prepare_chat(service, decode(body, _CHAT))

    async def completion(body: bytes) -> Job:
        return await prepare_completion(service, decode(body, _COMPLETION))

    handlers = _Handlers(service)
    return [
        Route("/v1/chat/completions", Completions(service, chat), methods=["POST"]),
        Route("/v1/completions", Completions(service, completion), methods=["POST"]),
        Route("/v1/models", handlers.models),
        Route("/v1/models/{model:path}", handlers.one_model),
        Route("/tokenize", handlers.tokenize, methods=["POST"]),
        Route("/detokenize", handlers.detokenize, methods=["POST"]),
        Route("/health", handlers.health),
        Route("/ready", handlers.ready),
        Route("/metrics", handlers.metrics),
        Route("/version", handlers.version),
        Route("/", handlers.hint),
    ]


class _Handlers:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._slots = _slot_gauges(service)

    async def tokenize(self, request: Request) -> Response:
        asked = decode(await self._body(request), _TOKENIZE)
        service = self._service
        service.check_model(asked.model)
        if isinstance(asked.prompt, str) and isinstance(asked.messages, list):
            raise RequestError("prompt and messages are both set; send one", param="prompt")
        if isinstance(asked.prompt, str):
            ids = await encode(service, asked.prompt, asked.add_special_tokens, "prompt")
        elif isinstance(asked.messages, list):
            ids = await chat_prompt(service, asked.messages)
        else:
            raise RequestError("prompt is missing; send a text, or messages", param="prompt")
        context = service.pipeline.info.context_length
        return _json({"count": len(ids), "max_model_len": context, "tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        asked = decode(await self._body(request), _DETOKENIZE)
        service = self._service
        service.check_model(asked.model)
        size = service.pipeline.info.vocab_size
        for token_id in asked.tokens:
            if not 0 <= token_id < size:
                raise RequestError(
                    f"tokens has {token_id}; ids of this model lie in 0..{size - 1}", param="tokens"
                )
        text = await off_loop(len(asked.tokens), lambda: service.tokenizer.decode(asked.tokens))
        return _json({"prompt": text})

    async def models(self, _: Request) -> Response:
        return _json({"object": "list", "data": [self._model()]})

    async def one_model(self, request: Request) -> Response:
        self._service.check_model(request.path_params["model"])
        return _json(self._model())

    async def health(self, _: Request) -> Response:
        """The process lives."""
        return _json({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """New requests are taken."""
        if self._service.lifecycle.draining:
            return _json({"status": "draining"}, status=503)
        return _json({"status": "ready"})

    async def metrics(self, _: Request) -> Response:
        registry = self._service.pipeline.metrics.registry
        text = generate_latest(registry) + generate_latest(self._slots)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def version(self, _: Request) -> Response:
        return _json({"version": __version__})

    async def hint(self, request: Request) -> Response:
        model = self._service.model_id
        text = _HINT.format(version=__version__, model=model, host=request.url.netloc)
        return Response(text, media_type="text/plain")

    async def _body(self, request: Request) -> bytes:
        limit = self._service.settings.limits.max_body_bytes
        body, _ = await read_body(request.scope, request.receive, max_bytes=limit)
        return body

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._service.model_id,
            "object": "model",
            "created": self._service.created,
            "owned_by": "outrider",
            "max_model_len": self._service.pipeline.info.context_length,
        }


def _slot_gauges(service: Service) -> CollectorRegistry:
    """Gauges that are read from the target when they are asked for."""
    registry = CollectorRegistry()
    used = Gauge("outrider_slots_used", "Sessions that the target holds.", registry=registry)
    used.set_function(lambda: service.pipeline.occupancy()[0])
    total = Gauge("outrider_slots_total", "Sessions that fit.", registry=registry)
    total.set_function(lambda: service.pipeline.occupancy()[1])
    if service.pipeline.suffix_cache_bytes() is not None:
        kept = Gauge(
            "outrider_suffix_cache_bytes",
            "Memory of the earlier outputs that drafters look things up in.",
            registry=registry,
        )
        kept.set_function(lambda: service.pipeline.suffix_cache_bytes() or 0)
    for name, description, read in _CACHE_GAUGES:
        if service.pipeline.cache_use() is not None:
            gauge = Gauge(f"outrider_kv_cache_{name}_bytes", description, registry=registry)
            gauge.set_function(partial(_read_cache, service, read))
    return registry


def _read_cache(service: Service, read: Callable[[CacheUse], int]) -> int:
    use = service.pipeline.cache_use()
    return 0 if use is None else read(use)


def _json(value: Any, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
