"""What controllers are told, and when."""

from __future__ import annotations

import pytest

from outrider.control import Plan, RoundOutcome, RoundView
from outrider.types import SamplingParams
from tests.pipeline.scenes import (
    PROMPT,
    ScriptedDrafter,
    SlowTarget,
    alone,
    pipeline_over,
    run,
    settings,
    table_target,
)

pytestmark = pytest.mark.anyio

SAMPLING = SamplingParams(temperature=0.0, max_tokens=40)


class Scripted:
    """Follows a list of plans, the last one for ever, and keeps what it is told."""

    def __init__(self, *plans: Plan) -> None:
        self._plans = list(plans)
        self.outcomes: list[RoundOutcome] = []

    def choose(self, view: RoundView) -> Plan:
        return self._plans.pop(0) if len(self._plans) > 1 else self._plans[0]

    def observe(self, outcome: RoundOutcome) -> None:
        self.outcomes.append(outcome)


async def _told(file, controller, script, *, delay_s: float = 0.0, **speculation):
    target = table_target(file) if not delay_s else SlowTarget(table_target(file), delay_s)
    pipeline = await pipeline_over(
        target, ScriptedDrafter(script), configured=settings(**speculation)
    )
    session = pipeline.session(PROMPT, SAMPLING)
    session.controller = controller
    assert await run(pipeline, session) == alone(file, PROMPT, SAMPLING)
    return controller.outcomes


async def test_the_first_token_is_not_told_since_its_time_is_the_prompt_s(file) -> None:
    outcomes = await _told(file, Scripted(Plan(lookahead=0, run=4)), lambda view, k: ())
    assert outcomes[0].context == len(PROMPT) + 1


async def test_a_run_tells_its_first_answer_and_those_that_follow_apart(file) -> None:
    outcomes = await _told(file, Scripted(Plan(lookahead=0, run=3)), lambda view, k: ())
    assert [outcome.further for outcome in outcomes[:8]] == [False, True, True, True] * 2
    assert all(outcome.drafted == 0 for outcome in outcomes)


async def test_a_round_whose_drafter_had_nothing_is_told_as_plain(file) -> None:
    outcomes = await _told(file, Scripted(Plan(lookahead=4)), lambda view, k: ())
    assert [(outcome.drafted, outcome.further) for outcome in outcomes] == [(0, False)] * len(
        outcomes
    )


async def test_times_of_draft_and_target_are_told_apart(file) -> None:
    output = alone(file, PROMPT, SAMPLING)

    class Slow(ScriptedDrafter):
        async def propose(self, view, max_tokens):
            self._script(view, max_tokens)
            return await super().propose(view, max_tokens)

    def script(view, k):
        return output[view.length - len(PROMPT) :][:k]

    outcomes = await _told(file, Scripted(Plan(lookahead=3)), script, delay_s=0.02)
    assert min(outcome.elapsed_s for outcome in outcomes) >= 0.018
    assert max(outcome.draft_s for outcome in outcomes) < 0.018
    assert [outcome.context for outcome in outcomes][:3] == [3, 7, 11]


async def test_a_missed_deadline_is_told_with_what_was_waited(file) -> None:
    outcomes = await _told(file, Scripted(Plan(lookahead=3)), lambda view, k: 0.5, deadline_ms=20.0)
    first = outcomes[0]
    assert (first.drafted, first.further) == (0, False)
    assert first.draft_s >= 0.018
    # While the late draft is under way the target runs alone, unplanned: only what follows is told.
    assert all(outcome.further for outcome in outcomes[1:16])


async def test_what_was_decided_is_counted_by_drafter(file) -> None:
    pipeline = await pipeline_over(
        table_target(file), ScriptedDrafter(lambda view, k: (0,) * k), configured=settings()
    )
    session = pipeline.session(PROMPT, SAMPLING)
    session.controller = Scripted(Plan(lookahead=3), Plan(lookahead=0, run=50))
    await run(pipeline, session)
    registry = pipeline.metrics.registry
    labels = {"drafter": "scripted"}
    assert registry.get_sample_value("outrider_lookahead_sum", labels) == 3.0
    assert registry.get_sample_value("outrider_lookahead_count", labels) == 3.0  # first token too
