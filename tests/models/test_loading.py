from __future__ import annotations

import asyncio
import threading

import pytest

from outrider.errors import UnknownModel
from outrider.models.loading import in_daemon_thread

pytestmark = pytest.mark.anyio


async def test_it_gives_what_the_function_gives_from_a_thread_that_holds_up_no_exit() -> None:
    thread = await in_daemon_thread(threading.current_thread)
    assert thread is not threading.current_thread()
    assert thread.daemon


async def test_an_error_reaches_whoever_waits() -> None:
    def fail() -> None:
        raise UnknownModel("there is none")

    with pytest.raises(UnknownModel, match="there is none"):
        await in_daemon_thread(fail)


async def test_whoever_stops_waiting_is_free_at_once() -> None:
    release = threading.Event()
    waiting = asyncio.create_task(in_daemon_thread(release.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting], timeout=5)
    assert waiting.cancelled()
    release.set()
    await asyncio.sleep(0.05)  # what comes too late is dropped in silence
