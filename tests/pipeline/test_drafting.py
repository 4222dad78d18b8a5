"""Drafting within the round loop: faulty, late and hanging drafters, and shadow drafts."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import pairwise

import pytest

from outrider.errors import (
    DraftFailed,
)
from outrider.types import (
    SamplingParams,
)
from tests.pipeline.scenes import (
    GREEDY,
    PROMPT,
    ScriptedDrafter,
    SlowTarget,
    alone,
    pipeline_over,
    right,
    run,
    settings,
    table_target,
)

pytestmark = pytest.mark.anyio

FAULTS = {
    "raises": lambda view, k: DraftFailed("broken"),
    "has a bug": lambda view, k: KeyError("bug"),
    "hangs": lambda view, k: 60.0,
    "drafts an id above the vocabulary": lambda view, k: [0, 5],
    "drafts a negative id": lambda view, k: [-1],
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_drafter_that_fails_costs_nothing_but_its_drafts(file, fault) -> None:
    drafter = ScriptedDrafter(FAULTS[fault])
    pipeline = await pipeline_over(table_target(file), drafter, configured=settings(deadline_ms=10))
    session = pipeline.session(PROMPT, GREEDY)
    assert await run(pipeline, session) == alone(file, PROMPT, GREEDY)
    assert session.stats.drafted == 0
    assert session.stats.failures > 0
    assert pipeline.metrics.draft_failures._value.get() == session.stats.failures


async def test_after_a_failed_draft_the_target_runs_alone_for_a_while(file) -> None:
    drafter = ScriptedDrafter(lambda view, k: DraftFailed("broken"))
    pipeline = await pipeline_over(table_target(file), drafter)
    await run(pipeline, pipeline.session(PROMPT, GREEDY))
    lengths = [length for length, _ in drafter.asked]
    assert all(later - earlier >= 16 for earlier, later in pairwise(lengths))


async def test_a_drafter_that_keeps_failing_is_asked_ever_more_rarely(file) -> None:
    drafter = ScriptedDrafter(lambda view, k: DraftFailed("broken"))
    pipeline = await pipeline_over(table_target(file), drafter)
    await run(pipeline, pipeline.session(PROMPT, SamplingParams(temperature=0.0, max_tokens=1000)))
    lengths = [length for length, _ in drafter.asked]
    gaps = [later - earlier for earlier, later in pairwise(lengths)]
    assert gaps == [16, 32, 64, 128, 256, 256]


async def test_a_drafter_that_comes_back_is_used_again_as_before(file) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=400)
    output = alone(file, PROMPT, sampling)
    faults = iter([DraftFailed("down")] * 3)

    def script(view, k):
        return next(faults, None) or output[view.length - len(PROMPT) :][:k]

    drafter = ScriptedDrafter(script)
    pipeline = await pipeline_over(table_target(file), drafter)
    session = pipeline.session(PROMPT, sampling)
    assert await run(pipeline, session) == output
    lengths = [length for length, _ in drafter.asked]
    assert [later - earlier for earlier, later in pairwise(lengths)][:3] == [16, 32, 64]
    assert session.stats.failures == 3
    assert session.stats.accepted == session.stats.drafted > 200


async def test_a_late_draft_is_awaited_beside_the_output_and_drafting_goes_on(file) -> None:
    """As a draft model does that has a long prompt to read: only its first draft is late."""
    output = alone(file, PROMPT, SamplingParams(temperature=0.0, max_tokens=400))
    late = iter([0.03])

    class Reading(ScriptedDrafter):
        async def propose(self, view, max_tokens):
            await asyncio.sleep(next(late, 0.0))
            return await super().propose(view, max_tokens)

    drafter = Reading(lambda view, k: output[view.length - len(PROMPT) :][:k])
    pipeline = await pipeline_over(
        SlowTarget(table_target(file), 0.001), drafter, configured=settings(deadline_ms=10)
    )
    session = pipeline.session(PROMPT, SamplingParams(temperature=0.0, max_tokens=400))
    assert await run(pipeline, session) == output
    assert session.stats.failures == 1
    assert session.stats.accepted == session.stats.drafted > 100


async def test_a_drafter_that_hangs_is_waited_for_once(file) -> None:
    drafter = ScriptedDrafter(lambda view, k: 60.0)
    pipeline = await pipeline_over(table_target(file), drafter, configured=settings(deadline_ms=10))
    await run(pipeline, pipeline.session(PROMPT, SamplingParams(temperature=0.0, max_tokens=400)))
    assert len(drafter.asked) == 1


async def test_a_draft_longer_than_asked_for_is_cut(file) -> None:
    output = alone(file, PROMPT, GREEDY)
    script = lambda view, k: output[view.length - len(PROMPT) :]  # noqa: E731 # ignores k on purpose
    configured = settings(controller="fixed", lookahead=3)
    pipeline = await pipeline_over(
        table_target(file), ScriptedDrafter(script), configured=configured
    )
    session = pipeline.session(PROMPT, GREEDY)
    assert await run(pipeline, session) == output
    assert session.stats.drafted <= 3 * session.stats.drafts


async def test_beyond_the_drafters_context_nothing_is_drafted(file) -> None:
    drafter = ScriptedDrafter(right(file), context_length=len(PROMPT) + 10)
    pipeline = await pipeline_over(table_target(file), drafter)
    session = pipeline.session(PROMPT, GREEDY)
    assert await run(pipeline, session) == alone(file, PROMPT, GREEDY)
    assert max(length + k for length, k in drafter.asked) <= len(PROMPT) + 10


async def test_the_first_token_never_waits_for_the_drafter(file) -> None:
    drafter = ScriptedDrafter(lambda view, k: 60.0)
    pipeline = await pipeline_over(
        table_target(file), drafter, configured=settings(deadline_ms=60_000)
    )
    async with aclosing(pipeline.run(pipeline.session(PROMPT, GREEDY))) as steps:
        await asyncio.wait_for(anext(steps), timeout=5)
    assert drafter.asked == []


async def test_at_zero_a_shadow_draft_brings_speculation_back_without_costing_a_round(file) -> None:
    output = alone(file, PROMPT, SamplingParams(temperature=0.0, max_tokens=300))
    script = lambda view, k: output[view.length - len(PROMPT) :][:k]  # noqa: E731
    configured = settings(controller="window", lookahead=0, window=2)
    pipeline = await pipeline_over(
        table_target(file), ScriptedDrafter(script), configured=configured
    )
    session = pipeline.session(PROMPT, SamplingParams(temperature=0.0, max_tokens=300))
    assert await run(pipeline, session) == output
    assert session.stats.drafted > 100


async def test_a_hanging_shadow_draft_never_delays_the_output(file) -> None:
    drafter = ScriptedDrafter(lambda view, k: 60.0)
    configured = settings(controller="window", lookahead=0, deadline_ms=60_000)
    pipeline = await pipeline_over(table_target(file), drafter, configured=configured)
    sampling = SamplingParams(temperature=0.0, max_tokens=100)
    async with asyncio.timeout(5):
        assert await run(pipeline, pipeline.session(PROMPT, sampling)) == alone(
            file, PROMPT, sampling
        )
    assert len(drafter.asked) == 1


async def test_a_shadow_draft_that_fails_is_counted_and_the_drafter_rests(file) -> None:
    drafter = ScriptedDrafter(lambda view, k: DraftFailed("broken"))
    configured = settings(controller="window", lookahead=0)
    pipeline = await pipeline_over(table_target(file), drafter, configured=configured)
    session = pipeline.session(PROMPT, SamplingParams(temperature=0.0, max_tokens=300))
    await run(pipeline, session)
    assert session.stats.failures == len(drafter.asked) == 5  # 16, 32, 64, 128 tokens apart


async def test_a_shadow_draft_of_nothing_teaches_nothing(file) -> None:
    drafter = ScriptedDrafter(lambda view, k: [])
    configured = settings(controller="window", lookahead=0)
    pipeline = await pipeline_over(table_target(file), drafter, configured=configured)
    session = pipeline.session(PROMPT, SamplingParams(temperature=0.0, max_tokens=200))
    await run(pipeline, session)
    assert (session.stats.failures, session.stats.drafted) == (0, 0)
    assert len(drafter.asked) > 3
