"""Answering chat and plain completions, whole or as a stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from outrider.gateway.generation import Generation
from outrider.gateway.prepare import Job
from outrider.gateway.prompts import off_loop
from outrider.gateway.replies import Output, header, reply
from outrider.gateway.service import Service
from outrider.gateway.stream import Frames, error_frame
from outrider.serving import failure_of, read_body, shutting_down, while_connected

__all__ = ["Completions"]

_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_log = structlog.get_logger("outrider.gateway")


class Completions:
    """One endpoint, as an ASGI app, so that it decides itself when the status is sent.

    Args:
        service: what handlers share.
        prepare: from a body to a job; raises `RequestError`.
    """

    def __init__(self, service: Service, prepare: Callable[[bytes], Awaitable[Job]]) -> None:
        self._service = service
        self._prepare = prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        with service.lifecycle.request():
            limit = service.settings.limits.max_body_bytes
            body, _ = await read_body(scope, receive, max_bytes=limit)
            service.admission.check()  # before the work of tokenizing, which a refusal would waste
            job = await self._prepare(body)
            slots = service.admission.enter([choice.session.most for choice in job.choices])
            generation = Generation(service.pipeline, job.choices, slots)
            async with generation:
                with (
                    service.lifecycle.ended_by(lambda: generation.abort(shutting_down())),
                    while_connected(receive),
                ):
                    if job.stream:
                        await self._stream(job, generation, send)
                    else:
                        await self._whole(job, generation, send)

    async def _whole(self, job: Job, generation: Generation, send: Send) -> None:
        output = Output(job)
        async for delta in generation:
            output.add(delta)
        body = await off_loop(
            output.logprobs, lambda: msgspec.json.encode(reply(self._service, job, output))
        )
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, job: Job, generation: Generation, send: Send) -> None:
        first = await anext(generation)  # until then an error has a status of its own
        frames = Frames(job, header(self._service, job), Output(job))
        await send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})
        await _send_part(send, frames.frame(first))
        try:
            async for delta in generation:
                parts = [frames.frame(delta)]
                parts += [frames.frame(more) for more in generation.ready()]
                await _send_part(send, b"".join(parts))
        except Exception as error:  # the status is sent, so the stream itself must tell
            failure = failure_of(error)
            unforeseen = error if failure.status == 500 else None
            _log.warning(
                "stream_failed", status=failure.status, reason=str(error), exc_info=unforeseen
            )
            await _send_part(send, error_frame(failure), more=False)
            return
        await _send_part(send, frames.end(), more=False)


async def _send_part(send: Send, part: bytes, *, more: bool = True) -> None:
    if part or not more:
        await send({"type": "http.response.body", "body": part, "more_body": more})
