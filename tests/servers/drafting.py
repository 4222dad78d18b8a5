"""Draft servers under test, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from outrider.config import Settings
from outrider.drafters import Drafter, SessionView
from outrider.drafters.wire import Description
from outrider.models import TableModel
from outrider.servers.draft_app import create_draft_app
from outrider.servers.draft_service import DraftService
from outrider.serving import Lifecycle, bind, serve
from outrider.types import Draft, DrafterInfo

V = 5


@dataclass
class Serving:
    """A draft server, and a client of its own kind."""

    url: str
    service: DraftService
    lifecycle: Lifecycle
    http: aiohttp.ClientSession
    stop: asyncio.Event

    async def propose(self, expect: int = 200, **body: Any) -> dict[str, Any]:
        async with self.http.post(f"{self.url}/v1/propose", json=body) as response:
            content = await response.read()
            assert response.status == expect, content
            return msgspec.json.decode(content)

    async def get(self, path: str, expect: int = 200) -> bytes:
        async with self.http.get(f"{self.url}{path}") as response:
            content = await response.read()
            assert response.status == expect, content
            return content


@asynccontextmanager
async def serving(
    drafter: Drafter, description: Description, *, port: int = 0, **sections: Any
) -> AsyncIterator[Serving]:
    """Serve a drafter as the command does."""
    settings = Settings(**sections)
    service = DraftService(drafter, description, settings)
    app = create_draft_app(service, settings)
    sock = bind("127.0.0.1", port)
    ready, stop = asyncio.Event(), asyncio.Event()
    tls = settings.peers
    scheme = "http" if tls.cert_file is None else "https"
    url = f"{scheme}://127.0.0.1:{sock.getsockname()[1]}"
    task = asyncio.create_task(
        serve(
            app,
            sock,
            app.state.lifecycle,
            drain_s=settings.draft_server.drain_s,
            tls=tls,
            on_ready=ready.set,
            stop=stop,
        )
    )
    async with aiohttp.ClientSession() as http:
        await asyncio.wait([task, asyncio.create_task(ready.wait())], return_when="FIRST_COMPLETED")
        try:
            yield Serving(url, service, app.state.lifecycle, http, stop)
        finally:
            stop.set()
            await task
            await service.sessions.close()
            sock.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that nothing tells of."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 # see above
            await asyncio.sleep(0.002)


def description(model: TableModel) -> Description:
    return Description(
        name="table:draft",
        model_hash=model.model_hash,
        vocab_size=model.vocab_size,
        vocab_fingerprint=model.vocab_fingerprint,
        context_length=model.context_length,
    )


class Watched:
    """Records what the drafter behind the server is asked, and may hold it up."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.views: list[tuple[str, list[int], tuple[int, ...]]] = []
        self.released: list[str] = []
        self.hold: asyncio.Event | None = None
        self.cancelled = 0

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        self.views.append((view.session_id, list(view.tokens[: view.length]), view.guess))
        if self.hold is not None:
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return await self._drafter.propose(view, max_tokens)

    async def release(self, session_id: str) -> None:
        self.released.append(session_id)

    async def describe(self) -> DrafterInfo:
        return await self._drafter.describe()

    async def close(self) -> None:
        """Nothing is held."""


def greedy(model: TableModel, tokens: list[int], count: int) -> list[int]:
    known = list(tokens)
    for _ in range(count):
        known.append(int(model.logits(known, len(known)).argmax()))
    return known[len(tokens) :]
