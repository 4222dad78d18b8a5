"""Loading models without holding up an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

__all__ = ["in_daemon_thread"]

T = TypeVar("T")


async def in_daemon_thread(function: Callable[[], T]) -> T:
    """The result of `function`, computed in a thread that does not outlive the process.

    Loading takes seconds, or minutes with a download; Ctrl-C must not have to wait for it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(outcome: Callable[[], None]) -> None:
        if not future.done():
            outcome()

    def work() -> None:
        try:
            outcome = partial(future.set_result, function())
        except BaseException as error:  # handed to whoever waits
            outcome = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=work, name="outrider-loading", daemon=True).start()
    return await future
