"""What the handlers share: the pipeline, text, admission, and the way down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException
from starlette.types import Receive

from outrider.config import Settings
from outrider.errors import RequestError
from outrider.gateway.admission import Admission
from outrider.gateway.errors import ClientGone
from outrider.gateway.generation import Generation
from outrider.pipeline import Pipeline
from outrider.text import ChatTemplate, Tokenizer

__all__ = ["Lifecycle", "Service"]


class Lifecycle:
    """Knows what is under way, and ends it. For one event loop.

    Attributes:
        draining: no new requests are taken; what runs may finish.
    """

    def __init__(self) -> None:
        self.draining = False
        self._requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._generations: set[Generation] = set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around a request that a shutdown has to wait for.

        Raises:
            HTTPException: 503, the server shuts down.
        """
        if self.draining:
            raise _shutting_down()
        self._requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if self._requests == 0:
                self._idle.set()

    @asynccontextmanager
    async def running(self, generation: Generation, receive: Receive) -> AsyncIterator[Generation]:
        """Around a generation: it stops when the client goes, or when a shutdown cannot wait."""
        async with generation:
            self._generations.add(generation)
            watch = asyncio.create_task(_abort_when_gone(generation, receive))
            try:
                yield generation
            finally:
                self._generations.discard(generation)
                watch.cancel()

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new; return when all is done, or cut short after `timeout_s`."""
        self.draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        """Cut short what runs."""
        self.draining = True
        for generation in self._generations:
            generation.abort(_shutting_down())


@dataclass(frozen=True, slots=True)
class Service:
    """What the handlers share.

    Attributes:
        pipeline: decodes.
        settings: bounds.
        tokenizer: the target's.
        template: the target's, maybe unavailable.
        admission: who may run.
        lifecycle: what is under way.
        created: time of the start, in seconds since 1970.
    """

    pipeline: Pipeline
    settings: Settings
    tokenizer: Tokenizer
    template: ChatTemplate
    admission: Admission
    lifecycle: Lifecycle
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def model_id(self) -> str:
        """The one model that is served."""
        return self.pipeline.info.model_id

    @property
    def fingerprint(self) -> str:
        """Changes when the weights do; OpenAI's `system_fingerprint`."""
        return f"fp_{self.pipeline.info.model_hash.rpartition(':')[2][:16]}"

    def check_model(self, model: str | None) -> None:
        """Raise `RequestError` unless `model` is served here."""
        if model is not None and model != self.model_id:
            raise RequestError(
                f"there is no model {model[:200]!r} here; this server serves {self.model_id!r}",
                param="model",
                code="model_not_found",
            )


async def _abort_when_gone(generation: Generation, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.abort(ClientGone())


def _shutting_down() -> HTTPException:
    return HTTPException(
        503,
        "the server is shutting down; send the request again",
        headers={"Connection": "close", "Retry-After": "1"},
    )
