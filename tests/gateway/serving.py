"""The gateway under test: in process or over sockets, the real pipeline, a scripted target."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from outrider.config import Settings
from outrider.gateway import create_app
from outrider.metrics import Metrics
from outrider.pipeline import Pipeline
from outrider.serving import bind, serve
from outrider.targets import CacheUse, Opened, OpenRequest
from outrider.types import (
    Draft,
    FinishReason,
    TargetInfo,
    TokenIds,
    TokenLogprobs,
    Verification,
)

END = 256
"""The end-of-sequence token of the byte model; ids below are bytes."""

_CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def _byte_tokenizer() -> str:
    """A tokenizer whose tokens are the 256 bytes, so that characters are split over tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in printable}
    rest = [byte for byte in range(256) if byte not in names]
    names |= {byte: chr(256 + offset) for offset, byte in enumerate(rest)}
    tokenizer = Tokenizer(models.BPE({names[byte]: byte for byte in range(256)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer.to_str()


BYTE_MODEL = TargetInfo(
    model_id="bytes",
    model_hash="sha256:0123456789abcdef0123456789abcdef",
    vocab_size=257,
    vocab_fingerprint="bytes",
    eos_token_ids=frozenset({END}),
    context_length=4096,
    tokenizer_json=_byte_tokenizer(),
    chat_template=_CHAT,
)


def told(token_id: int, position: int, count: int) -> TokenLogprobs:
    """Log probabilities of the scripted target: the token leads, then the ids that follow it."""
    own = -0.25 * (position + 1)
    top = tuple(((token_id + rank) % 257, own - rank) for rank in range(count))
    return TokenLogprobs(token_id, own, top)


class ScriptedTarget:
    """Answers every session with the same steps, at a given pace.

    Args:
        steps: makes the steps of a session; an exception among them is raised. Tokens after the
            first of a step count as accepted drafts.
        delay_s: before every step.
        gate: every step waits until it is set.
        max_sessions: that fit.
        cached_tokens: of every prompt.
        cache_use: what it says of its memory.
        logprobs: of a token, at an output position, with so many likely ones; None tells nothing,
            whatever was asked.
    """

    def __init__(
        self,
        steps: Callable[[OpenRequest], Iterable[TokenIds | Exception]],
        *,
        delay_s: float = 0.0,
        gate: asyncio.Event | None = None,
        max_sessions: int = 64,
        cached_tokens: int = 0,
        cache_use: CacheUse | None = None,
        logprobs: Callable[[int, int, int], TokenLogprobs] | None = told,
    ) -> None:
        self._steps = steps
        self._delay_s = delay_s
        self._gate = gate
        self._max_sessions = max_sessions
        self._cached_tokens = cached_tokens
        self._cache_use = cache_use
        self._logprobs = logprobs
        self.open_sessions: dict[str, OpenRequest] = {}
        self.opened: list[OpenRequest] = []
        self.closed_at: list[float] = []

    async def describe(self) -> TargetInfo:
        return BYTE_MODEL

    async def open(self, request: OpenRequest) -> Opened:
        self.open_sessions[request.session_id] = request
        self.opened.append(request)
        return Opened(self._cached_tokens)

    async def advance(
        self, session_id: str, round_id: int, position: int, draft: Draft, run: int
    ) -> AsyncGenerator[Verification]:
        request = self.open_sessions[session_id]
        ends = request.sampling.stop_token_ids
        if not request.sampling.ignore_eos:
            ends |= BYTE_MODEL.eos_token_ids
        try:
            for step in self._steps(request):
                await asyncio.sleep(self._delay_s)
                if self._gate is not None:
                    await self._gate.wait()
                if isinstance(step, Exception):
                    raise step
                tokens = step[: request.sampling.max_tokens - position]
                finish = FinishReason.LENGTH if len(tokens) < len(step) else None
                if position + len(tokens) == request.sampling.max_tokens:
                    finish = FinishReason.LENGTH
                if tokens[-1] in ends:
                    finish = FinishReason.STOP
                drafted = len(step) - 1
                yield Verification(
                    round_id,
                    position,
                    tokens,
                    drafted,
                    drafted,
                    finish,
                    logprobs=self._told(request, tokens, position),
                )
                position += len(tokens)
                if finish is not None:
                    return
        finally:
            self.closed_at.append(time.perf_counter())

    def _told(
        self, request: OpenRequest, tokens: TokenIds, position: int
    ) -> tuple[TokenLogprobs, ...] | None:
        count = request.sampling.logprobs
        if count is None or self._logprobs is None:
            return None
        places = enumerate(tokens, start=position)
        return tuple(self._logprobs(token_id, place, count) for place, token_id in places)

    async def release(self, session_id: str) -> None:
        self.open_sessions.pop(session_id, None)

    async def close(self) -> None:
        self.open_sessions.clear()

    def occupancy(self) -> tuple[int, int]:
        return len(self.open_sessions), self._max_sessions

    def cache_use(self) -> CacheUse | None:
        return self._cache_use


@dataclass
class Gateway:
    """A running gateway."""

    url: str
    port: int
    pipeline: Pipeline
    client: httpx.AsyncClient
    stop: asyncio.Event

    async def post(self, path: str, body: Any, **extra: Any) -> httpx.Response:
        return await self.client.post(path, json=body, **extra)

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, through the strict parser."""
        response = await self.client.post(path, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return parse_events(response.content)

    def gauge(self, name: str) -> float:
        value = self.pipeline.metrics.registry.get_sample_value(name)
        assert value is not None
        return value

    def at_rest(self) -> bool:
        """No slot is taken and nothing waits."""
        return (
            self.pipeline.occupancy()[0] == 0
            and self.gauge("outrider_running") == 0
            and self.gauge("outrider_queued") == 0
        )


async def until(condition: Callable[[], bool], *, within_s: float = 2.0) -> float:
    """Wait for `condition`, and tell how many seconds it took."""
    started = time.perf_counter()
    while not condition():
        assert time.perf_counter() - started < within_s, "it never came true"
        await asyncio.sleep(0.002)
    return time.perf_counter() - started


def parse_events(content: bytes) -> list[Any]:
    """Strict server-sent events: one `data:` line and an empty one each; `[DONE]` only last."""
    assert content.endswith(b"\n\n")
    events: list[Any] = []
    for block in content.decode("utf-8", "strict")[:-2].split("\n\n"):
        assert block.startswith("data: ")
        assert "\n" not in block
        assert "\r" not in block
        payload = block.removeprefix("data: ")
        events.append(payload if payload == "[DONE]" else json.loads(payload))
    assert "[DONE]" not in events[:-1]
    return events


@asynccontextmanager
async def in_process(pipeline: Pipeline, settings: Settings) -> AsyncIterator[Gateway]:
    """The app without sockets, for what does not depend on them."""
    app = create_app(pipeline, settings)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield Gateway("http://gateway", 0, pipeline, client, asyncio.Event())


@asynccontextmanager
async def running(pipeline: Pipeline, settings: Settings) -> AsyncIterator[Gateway]:
    """Serve `pipeline` on a free port of this machine."""
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    ready, stop = asyncio.Event(), asyncio.Event()
    app = create_app(pipeline, settings)
    drain_s = settings.server.drain_s
    task = asyncio.create_task(
        serve(app, sock, app.state.lifecycle, drain_s=drain_s, on_ready=ready.set, stop=stop)
    )
    await ready.wait()
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=10) as client:
            yield Gateway(url, port, pipeline, client, stop)
    finally:
        stop.set()
        await task
        await pipeline.close()


def scripted(
    target: ScriptedTarget, *, sockets: bool = False, **sections: Any
) -> AbstractAsyncContextManager[Gateway]:
    """A gateway over a scripted target, with `sections` as settings."""
    settings = Settings(**sections)
    pipeline = Pipeline(target, BYTE_MODEL, {}, settings, Metrics())
    return (running if sockets else in_process)(pipeline, settings)
