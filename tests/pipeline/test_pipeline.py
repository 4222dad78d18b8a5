"""The round loop: faults of the target, cancellation, finish reasons, statistics."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace

import pytest

from outrider.drafters import NgramDrafter
from outrider.errors import (
    ContextLengthExceeded,
    Overloaded,
    RequestError,
    TargetFailed,
)
from outrider.types import (
    Capabilities,
    Exactness,
    FinishReason,
    Origin,
    SamplingParams,
    VerificationMethod,
)
from tests.pipeline.scenes import (
    GREEDY,
    PROMPT,
    ForgetfulTarget,
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


@pytest.mark.parametrize("lost", [{1}, {2}, {3, 4}, {2, 5, 8}])
async def test_a_lost_session_is_reopened_and_the_output_is_unaffected(file, lost) -> None:
    target = ForgetfulTarget(table_target(file), lost)
    sampling = SamplingParams(seed=4, max_tokens=40)
    configured = settings(controller="fixed", lookahead=2)
    pipeline = await pipeline_over(target, NgramDrafter(), configured=configured)
    assert await run(pipeline, pipeline.session(PROMPT, sampling)) == alone(file, PROMPT, sampling)
    epochs = [request.epoch for request in target.opened]
    assert epochs == list(range(len(lost) + 1))
    assert len({request.noise_key for request in target.opened}) == 1
    assert pipeline.occupancy()[0] == 0


async def test_losses_with_progress_between_them_never_fail_the_request(file) -> None:
    target = ForgetfulTarget(table_target(file), set(range(2, 400, 2)))
    configured = settings(controller="fixed", lookahead=2)
    pipeline = await pipeline_over(target, NgramDrafter(), configured=configured)
    sampling = SamplingParams(seed=4, max_tokens=60)
    assert await run(pipeline, pipeline.session(PROMPT, sampling)) == alone(file, PROMPT, sampling)
    assert len(target.opened) > 10


async def test_an_answer_for_another_position_fails_the_request(file) -> None:
    class Confused(ForgetfulTarget):
        async def advance(self, session_id, round_id, position, draft, run):
            async for answer in super().advance(session_id, round_id, position, draft, run):
                yield replace(answer, position=answer.position + 1)

    pipeline = await pipeline_over(Confused(table_target(file), set()))
    with pytest.raises(TargetFailed, match="0 are committed"):
        await run(pipeline, pipeline.session(PROMPT, GREEDY))
    assert pipeline.occupancy()[0] == 0


@pytest.mark.parametrize(
    ("capabilities", "sampling", "drafted"),
    [
        (Capabilities(sampling=False), GREEDY, True),
        (Capabilities(sampling=False), SamplingParams(), False),
        (Capabilities(seeds=False), SamplingParams(), True),
    ],
)
async def test_what_a_target_cannot_verify_is_decoded_plainly(
    file, capabilities, sampling, drafted
) -> None:
    pipeline = await pipeline_over(table_target(file), NgramDrafter())
    pipeline.info = replace(pipeline.info, capabilities=capabilities)
    assert (pipeline.session(PROMPT, sampling).stats.drafter is not None) == drafted


async def test_a_seed_that_a_target_cannot_honour_is_refused(file) -> None:
    pipeline = await pipeline_over(table_target(file))
    pipeline.info = replace(pipeline.info, capabilities=Capabilities(seeds=False))
    with pytest.raises(RequestError, match="seed is 7"):
        pipeline.session(PROMPT, SamplingParams(seed=7))


async def test_a_target_that_keeps_losing_the_session_fails_the_request(file) -> None:
    target = ForgetfulTarget(table_target(file), set(range(100)))
    pipeline = await pipeline_over(target)
    with pytest.raises(TargetFailed, match="keeps losing the session"):
        await run(pipeline, pipeline.session(PROMPT, GREEDY))
    assert pipeline.occupancy()[0] == 0


async def test_closing_the_steps_early_releases_target_and_drafter_once(file) -> None:
    drafter = ScriptedDrafter(right(file))
    pipeline = await pipeline_over(table_target(file), drafter)
    session = pipeline.session(PROMPT, GREEDY)
    async with aclosing(pipeline.run(session)) as steps:
        await anext(steps)
        await anext(steps)
        assert pipeline.occupancy()[0] == 1
    assert pipeline.occupancy()[0] == 0
    assert drafter.released == [session.session_id]


async def test_cancellation_while_a_draft_is_pending_releases_everything_at_once(file) -> None:
    drafter = ScriptedDrafter(lambda view, k: 60.0)
    pipeline = await pipeline_over(
        table_target(file), drafter, configured=settings(deadline_ms=60_000)
    )
    session = pipeline.session(PROMPT, GREEDY)
    task = asyncio.create_task(run(pipeline, session))
    await drafter.called.wait()
    started = time.perf_counter()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.perf_counter() - started < 1
    assert pipeline.occupancy()[0] == 0
    assert drafter.released == [session.session_id]


async def test_no_room_at_the_target_is_reported_and_leaks_nothing(file) -> None:
    pipeline = await pipeline_over(table_target(file, max_sessions=1))
    async with aclosing(pipeline.run(pipeline.session(PROMPT, GREEDY))) as steps:
        await anext(steps)
        with pytest.raises(Overloaded):
            await run(pipeline, pipeline.session(PROMPT, GREEDY))
        assert pipeline.occupancy() == (1, 1)
    assert pipeline.occupancy() == (0, 1)


async def test_what_is_just_being_given_back_is_waited_for(file) -> None:
    """A place may be free to the gateway a moment before the target has it back."""
    inner = table_target(file, max_sessions=1)
    going = asyncio.Event()

    class SlowToRelease(ForgetfulTarget):
        async def release(self, session_id: str) -> None:
            await going.wait()
            await self._inner.release(session_id)

    pipeline = await pipeline_over(SlowToRelease(inner, set()))
    first = asyncio.create_task(run(pipeline, pipeline.session(PROMPT, GREEDY)))
    while not pipeline._releasing:  # noqa: ASYNC110 # there is no event for it
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(run(pipeline, pipeline.session(PROMPT, GREEDY)))
    await asyncio.wait([second], timeout=0.01)
    going.set()
    assert await second == alone(file, PROMPT, GREEDY)


async def test_finish_reasons_tell_eos_from_the_budget(write_table) -> None:
    file = write_table("target", seed=1, order=2, eos=(2,))
    pipeline = await pipeline_over(table_target(file), NgramDrafter())
    stopped = pipeline.session(PROMPT, SamplingParams(seed=1, max_tokens=1000))
    output = await run(pipeline, stopped)
    assert output[-1] == 2
    assert 2 not in output[:-1]
    assert stopped.finish_reason is FinishReason.STOP
    short = pipeline.session(PROMPT, SamplingParams(seed=1, max_tokens=1))
    assert len(await run(pipeline, short)) == 1
    assert short.finish_reason is (FinishReason.STOP if output[0] == 2 else FinishReason.LENGTH)


async def test_every_token_says_where_it_came_from(file) -> None:
    output = alone(file, PROMPT, GREEDY)
    script = lambda view, k: (*output[view.length - 2 :][:2], (output[view.length] + 1) % 5)[:k]  # noqa: E731
    configured = settings(controller="fixed", lookahead=3)
    pipeline = await pipeline_over(
        table_target(file), ScriptedDrafter(script), configured=configured
    )
    async with aclosing(pipeline.run(pipeline.session(PROMPT, GREEDY))) as steps:
        first, second = [await anext(steps), await anext(steps)]
    assert first.origins == (Origin.PLAIN,)
    assert second.origins == (Origin.ACCEPTED, Origin.ACCEPTED, Origin.RECOVERED)


async def test_statistics_match_a_scripted_draft(file) -> None:
    """Two of three drafted tokens are right in every round: three tokens a round."""
    output = alone(file, PROMPT, SamplingParams(temperature=0.0, max_tokens=60))

    def script(view, k):
        position = view.length - len(PROMPT)
        return [*output[position : position + 2], (output[position + 2] + 1) % 5]

    configured = settings(controller="fixed", lookahead=3)
    pipeline = await pipeline_over(
        table_target(file), ScriptedDrafter(script), configured=configured
    )
    session = pipeline.session(PROMPT, SamplingParams(temperature=0.0, max_tokens=31))
    assert len(await run(pipeline, session)) == 31
    assert session.stats.rounds == 11
    assert (session.stats.drafts, session.stats.drafted, session.stats.accepted) == (10, 29, 20)
    metrics = pipeline.metrics
    assert metrics.accepted_tokens._value.get() == 20
    assert metrics.rejected_tokens._value.get() == 9
    assert metrics.output_tokens._value.get() == 31
    per_position = [metrics.accepted_per_position.labels(str(i))._value.get() for i in range(3)]
    assert per_position == [10, 10, 0]


async def test_closing_waits_for_releases_and_closes_all(file) -> None:
    target, drafter = SlowTarget(table_target(file), 0.0), ScriptedDrafter(right(file))
    let_go = asyncio.Event()

    async def release(session_id: str) -> None:
        await let_go.wait()
        await target._inner.release(session_id)

    target.release = release
    pipeline = await pipeline_over(target, drafter)
    task = asyncio.create_task(run(pipeline, pipeline.session(PROMPT, GREEDY)))
    while not pipeline._releasing:  # noqa: ASYNC110 # there is no event for it
        await asyncio.sleep(0)
    task.cancel()  # the release goes on all the same
    closing = asyncio.create_task(pipeline.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    let_go.set()
    await closing
    assert target._inner.occupancy()[0] == 0
    assert drafter.closed


async def test_on_a_target_whose_batches_round_differently_the_statement_says_so(file) -> None:
    drafter = ScriptedDrafter(lambda view, k: [0] * k)
    pipeline = await pipeline_over(table_target(file), drafter)
    pipeline.info = replace(pipeline.info, capabilities=Capabilities(batch_invariant=False))
    session = pipeline.session(PROMPT, GREEDY)
    await run(pipeline, session)
    method, exact, reason = session.verification()
    assert (method, exact) == (VerificationMethod.GREEDY, Exactness.IDENTICAL)
    assert "rounding" in (reason or "")


async def test_speculation_can_be_turned_off_per_request(file) -> None:
    drafter = ScriptedDrafter(right(file))
    pipeline = await pipeline_over(table_target(file), drafter)
    for off in ({"enabled": False}, {"max_lookahead": 0}):
        session = pipeline.session(PROMPT, GREEDY, **off)
        await run(pipeline, session)
        assert session.stats.drafter is None
    assert drafter.asked == []


async def test_a_request_picks_its_drafter_and_bounds_its_lookahead(file) -> None:
    one, two = ScriptedDrafter(right(file), name="one"), ScriptedDrafter(right(file), name="two")
    pipeline = await pipeline_over(table_target(file), one, two)
    await run(pipeline, pipeline.session(PROMPT, GREEDY, drafter="two", max_lookahead=2))
    assert one.asked == []
    assert {k for _, k in two.asked} <= {1, 2}


@pytest.mark.parametrize(
    ("prompt", "sampling", "options", "complaint"),
    [
        ((), GREEDY, {}, "the prompt is empty"),
        ((0, 5), GREEDY, {}, "token id 5; ids of this model lie in 0..4"),
        ((0, -1), GREEDY, {}, "token id -1"),
        (PROMPT, SamplingParams(max_tokens=0), {}, "max_tokens is 0"),
        (PROMPT, SamplingParams(temperature=float("nan")), {}, "temperature is nan"),
        (PROMPT, GREEDY, {"drafter": "nobody"}, "no drafter 'nobody'; known are ngram"),
        (PROMPT, GREEDY, {"max_lookahead": -1}, "max_lookahead is -1"),
    ],
)
async def test_an_impossible_request_is_refused_by_name(
    file, prompt, sampling, options, complaint
) -> None:
    pipeline = await pipeline_over(table_target(file), NgramDrafter())
    with pytest.raises(RequestError) as caught:
        pipeline.session(prompt, sampling, **options)
    assert complaint in str(caught.value)


async def test_prompt_and_budget_must_fit_the_context(write_table) -> None:
    file = write_table("target", context_length=20)
    pipeline = await pipeline_over(table_target(file))
    pipeline.session((0,) * 10, SamplingParams(max_tokens=10))
    with pytest.raises(ContextLengthExceeded) as caught:
        pipeline.session((0,) * 10, SamplingParams(max_tokens=11))
    assert caught.value.param == "max_tokens"
    with pytest.raises(ContextLengthExceeded) as caught:
        pipeline.session((0,) * 20, SamplingParams(max_tokens=1))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("sampling", "enabled", "expected"),
    [
        (GREEDY, True, (VerificationMethod.GREEDY, Exactness.IDENTICAL)),
        (SamplingParams(seed=1), True, (VerificationMethod.MATCHING, Exactness.IDENTICAL)),
        (SamplingParams(), True, (VerificationMethod.MATCHING, Exactness.DISTRIBUTION)),
        (SamplingParams(), False, (VerificationMethod.NONE, Exactness.IDENTICAL)),
    ],
)
async def test_a_session_states_how_it_was_verified(file, sampling, enabled, expected) -> None:
    drafter = ScriptedDrafter(lambda view, k: [0] * k)
    pipeline = await pipeline_over(table_target(file), drafter)
    session = pipeline.session(PROMPT, sampling, enabled=enabled)
    await run(pipeline, session)
    assert session.verification()[:2] == expected
