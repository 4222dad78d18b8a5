"""What clients see of the target's memory: reuse, waiting for room, and what never fits."""

from __future__ import annotations

import asyncio

import pytest

from outrider.targets import CacheUse

from .serving import END, ScriptedTarget, scripted, until

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
HELLO = {"model": "bytes", "prompt": "Hello"}


async def test_tokens_taken_from_earlier_requests_are_told_once_for_each_prompt() -> None:
    target = ScriptedTarget(lambda _: [tuple(b"Hi"), (END,)], cached_tokens=3)
    asked = {"model": "bytes", "prompt": ["abcdef", "ghijkl"], "n": 2}
    options = {"stream_options": {"include_usage": True}}
    async with scripted(target) as gateway:
        body = (await gateway.post(PATH, asked)).json()
        events = await gateway.events(PATH, asked | options)
    assert body["usage"]["prompt_tokens"] == 12
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}
    assert events[-2]["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}


async def test_requests_wait_for_memory_and_are_not_refused() -> None:
    """Two of `HELLO` fit the target's memory at a time; it would refuse a third."""
    gate = asyncio.Event()
    use = CacheUse(tokens=600, budget_bytes=6000, used_bytes=0, retained_bytes=0)
    target = ScriptedTarget(lambda _: [tuple(b"Hi"), (END,)], gate=gate, cache_use=use)
    async with scripted(target) as gateway:
        tasks = [asyncio.create_task(gateway.post(PATH, HELLO)) for _ in range(5)]
        await until(lambda: gateway.gauge("outrider_queued") == 3)
        assert len(target.opened) == 2
        gate.set()
        replies = await asyncio.gather(*tasks)
        assert [reply.status_code for reply in replies] == [200] * 5
        assert gateway.at_rest()


async def test_a_request_that_memory_can_never_hold_is_a_400_with_the_remedy() -> None:
    use = CacheUse(tokens=100, budget_bytes=1000, used_bytes=0, retained_bytes=0)
    async with scripted(ScriptedTarget(lambda _: [(END,)], cache_use=use)) as gateway:
        response = await gateway.post(PATH, HELLO | {"max_tokens": 200})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    assert "--kv-memory" in error["message"]
