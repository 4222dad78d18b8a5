"""What a server has under way, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.types import Receive

from outrider.serving.failures import ClientGone

__all__ = ["Lifecycle", "shutting_down", "while_connected"]


class Lifecycle:
    """Counts the requests under way, and ends them. For one event loop.

    Attributes:
        draining: no new requests are taken; what runs may finish.
    """

    def __init__(self) -> None:
        self.draining = False
        self._cut = False
        self._ends: dict[asyncio.Task[object], Callable[[], object]] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around a request, in a task of its own, that a shutdown has to wait for.

        Raises:
            HTTPException: 503, the server shuts down, or has waited long enough for this one.
        """
        if self.draining:
            raise shutting_down()
        task = _current_task()
        self._ends[task] = task.cancel
        self._idle.clear()
        try:
            yield
        except asyncio.CancelledError:
            if not self._cut:
                raise
            task.uncancel()
            raise shutting_down() from None
        finally:
            del self._ends[task]
            if not self._ends:
                self._idle.set()

    @contextmanager
    def ended_by(self, end: Callable[[], None]) -> Iterator[None]:
        """Within a request: a shutdown that waits no longer calls `end`, and cancels nothing."""
        task = _current_task()
        before = self._ends[task]
        self._ends[task] = end
        try:
            yield
        finally:
            self._ends[task] = before

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
        self.draining = self._cut = True
        for end in self._ends.values():
            end()


@contextmanager
def while_connected(receive: Receive) -> Iterator[None]:
    """Around the work on a request whose body has been read: ends it when the client is gone.

    Raises:
        ClientGone: the client closed the connection.
    """
    task = _current_task()
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        raise ClientGone from None
    finally:
        watcher.cancel()


def _current_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 # requests are served by coroutines
    return task


def shutting_down() -> HTTPException:
    """What is answered to requests that come too late."""
    return HTTPException(
        503,
        "the server is shutting down; send the request again",
        headers={"Connection": "close", "Retry-After": "1"},
    )
