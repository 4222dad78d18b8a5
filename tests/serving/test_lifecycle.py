from __future__ import annotations

import asyncio

import pytest
from starlette.exceptions import HTTPException

from outrider.serving import ClientGone, Lifecycle, while_connected

pytestmark = pytest.mark.anyio


async def work(lifecycle: Lifecycle, seconds: float) -> str:
    with lifecycle.request():
        await asyncio.sleep(seconds)
        return "done"


async def test_a_drain_waits_for_what_runs_and_refuses_what_is_new() -> None:
    lifecycle = Lifecycle()
    running = asyncio.create_task(work(lifecycle, 0.02))
    await asyncio.sleep(0)
    await lifecycle.drain(5)
    assert await running == "done"
    with pytest.raises(HTTPException) as caught:
        await work(lifecycle, 0)
    assert caught.value.status_code == 503


async def test_what_outlasts_the_drain_is_cut_short_with_503() -> None:
    lifecycle = Lifecycle()
    running = asyncio.create_task(work(lifecycle, 60))
    await asyncio.sleep(0)
    await lifecycle.drain(0.01)
    with pytest.raises(HTTPException) as caught:
        await running
    assert caught.value.status_code == 503


async def test_a_request_that_is_cancelled_by_others_stays_cancelled() -> None:
    running = asyncio.create_task(work(Lifecycle(), 60))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_work_ends_when_the_client_is_gone() -> None:
    gone = asyncio.Event()

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def respond() -> None:
        with while_connected(receive):
            await asyncio.sleep(60)

    running = asyncio.create_task(respond())
    await asyncio.sleep(0)
    gone.set()
    with pytest.raises(ClientGone):
        await running


async def test_work_that_has_an_end_of_its_own_is_ended_by_it_and_not_cancelled() -> None:
    lifecycle, ended = Lifecycle(), asyncio.Event()

    async def stream() -> str:
        with lifecycle.request(), lifecycle.ended_by(ended.set):
            await ended.wait()
            return "told"

    running = asyncio.create_task(stream())
    await asyncio.sleep(0)
    await lifecycle.drain(0.01)
    assert await running == "told"


async def test_past_its_own_end_a_request_is_cancelled_as_others_are() -> None:
    lifecycle, ended = Lifecycle(), asyncio.Event()

    async def respond() -> None:
        with lifecycle.request():
            with lifecycle.ended_by(ended.set):
                pass
            await asyncio.sleep(60)

    running = asyncio.create_task(respond())
    await asyncio.sleep(0)
    lifecycle.abort()
    with pytest.raises(HTTPException):
        await running
    assert not ended.is_set()
