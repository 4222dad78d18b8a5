"""Servers to audit: a small one that can be told to lie, and the real gateway in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from outrider.config import Settings
from outrider.pipeline import create_pipeline
from tests.gateway.serving import running

V = 5


@dataclass
class SmallServer:
    """Draws tokens one by one from a fixed law, over HTTP.

    Attributes:
        lie: how much of the probability goes to token 0 instead, where speculation is on.
        greedy_lie: position from which greedy output is another one, where speculation is on.
        seed_lie: outputs with a seed are others where speculation is on.
        seeds: honour them.
        speaks: tells of its drafts and takes `speculation`, as Outrider does.
        drafts: tokens drafted per sample where speculation is on; `always_drafts` also where it is
            off.
        ids: takes `return_token_ids`.
        max_copies: largest `n`; more is refused.
        refuse: statuses of the first answers to completions.
        models: listed.
    """

    lie: float = 0.0
    greedy_lie: int | None = None
    greedy_noise: bool = False
    seed_lie: bool = False
    seeds: bool = True
    speaks: bool = True
    drafts: int = 2
    always_drafts: bool = False
    ids: bool = True
    max_copies: int = 128
    refuse: list[int] = field(default_factory=list)
    models: tuple[str, ...] = ("small",)
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    url: str = ""

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(7)

    async def list_models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self.models]})

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.keys.add(request.headers.get("Authorization"))
        if self.refuse:
            return _error(self.refuse.pop(0), "not now")
        if body["model"] not in self.models:
            return _error(404, f"no model {body['model']}")
        if "return_token_ids" in body and not self.ids:
            return _error(400, "unknown field return_token_ids")
        if body.get("n", 1) > self.max_copies:
            return _error(422, "too many copies")
        if "speculation" in body and not self.speaks:
            return _error(400, "unknown field speculation")
        on = body.get("speculation", {}).get("enabled", not self.speaks)
        drawn = [self._draw(body, on) for _ in range(body.get("n", 1))]
        chat = "messages" in body
        choices = []
        for tokens in drawn:
            text = " ".join(map(str, tokens))
            said: dict[str, Any] = {"message": {"content": text}} if chat else {"text": text}
            choices.append(said | ({"token_ids": tokens} if self.ids else {}))
        answer: dict[str, Any] = {"choices": choices}
        if self.speaks:
            answer["speculation"] = self._account(body, on)
        return web.json_response(answer)

    def _draw(self, body: dict[str, Any], on: bool) -> list[int]:
        length = body["max_tokens"]
        if body["temperature"] == 0:
            tokens = [index % V for index in range(length)]
            if on and self.greedy_lie is not None:
                tokens[self.greedy_lie] = V - 1 - tokens[self.greedy_lie]
            if self.greedy_noise:
                tokens[0] = int(self.rng.integers(1000))
            return tokens
        rng = self.rng
        if "seed" in body and self.seeds:
            rng = np.random.default_rng(body["seed"] + (self.seed_lie and on))
        law = np.array([0.3, 0.3, 0.2, 0.1, 0.1])
        if on and "seed" not in body:
            law = (1 - self.lie) * law + self.lie * np.eye(V)[0]
        return np.searchsorted(law.cumsum()[:-1], rng.random(length), side="right").tolist()

    def _account(self, body: dict[str, Any], on: bool) -> dict[str, Any]:
        drafted = self.drafts * body.get("n", 1) if on or self.always_drafts else 0
        exact = "identical" if "seed" in body or body["temperature"] == 0 else "distribution"
        return {
            "drafted_tokens": drafted,
            "accepted_tokens": drafted // 2,
            "verification": "matching",
            "exact": exact,
            "reason": None,
        }

    @asynccontextmanager
    async def running(self):
        """Serve on a free port; `url` is then set."""
        app = web.Application()
        app.router.add_get("/v1/models", self.list_models)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/v1/chat/completions", self.complete)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


def _error(status: int, message: str) -> web.Response:
    headers = {"Retry-After": "0"} if status == 429 else {}
    return web.json_response({"error": {"message": message}}, status=status, headers=headers)


@asynccontextmanager
async def gateway(target: Path, *drafts: str, **speculation: Any):
    """The real gateway over a table target."""
    names = drafts or ("none",)
    settings = Settings(
        engine={"target": f"table:{target}"},
        speculation={"drafts": names, "controller": "fixed", "lookahead": 3, **speculation},
    )
    async with running(await create_pipeline(settings), settings) as served:
        yield served


@contextmanager
def in_thread(serving: AbstractAsyncContextManager[Any]) -> Iterator[Any]:
    """Serve from another thread, for a client that runs an event loop of its own."""
    ready, box = threading.Event(), []

    async def main() -> None:
        stop = asyncio.Event()
        async with serving as served:
            box.extend([served, asyncio.get_running_loop(), stop])
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(timeout=20)
    served, loop, stop = box
    try:
        yield served
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=20)
