"""Drafts made ahead, while the target judges the one before."""

from __future__ import annotations

import asyncio

import pytest

from outrider.control import Plan, RoundOutcome, RoundView
from outrider.errors import DraftFailed
from outrider.types import Draft, DrafterInfo, SamplingParams
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

SAMPLING = SamplingParams(temperature=0.0, max_tokens=60)
K = 3


class Ahead:
    """Always drafts `K` tokens, the next ones ahead, and keeps what it is told."""

    def __init__(self, *, ahead: bool = True) -> None:
        self._ahead = ahead
        self.views: list[RoundView] = []
        self.outcomes: list[RoundOutcome] = []

    def choose(self, view: RoundView) -> Plan:
        self.views.append(view)
        return Plan(lookahead=min(K, view.max_draft_tokens), ahead=self._ahead)

    def observe(self, outcome: RoundOutcome) -> None:
        self.outcomes.append(outcome)


class Guessing(ScriptedDrafter):
    """Drafts the output, one wrong token at the places named; keeps every guess it was given."""

    def __init__(self, output, wrong=(), *, delay_s: float = 0.0) -> None:
        super().__init__(lambda view, k: (), ahead=True)
        self._output = output
        self._wrong = set(wrong)
        self._delay_s = delay_s
        self.guesses: list[tuple[int, tuple[int, ...]]] = []
        self.cancelled = 0

    async def describe(self) -> DrafterInfo:
        return self._info

    async def propose(self, view, max_tokens) -> Draft:
        start = view.length + len(view.guess) - len(PROMPT)
        self.asked.append((start, max_tokens))
        if view.guess:
            self.guesses.append((start, view.guess))
        try:
            await asyncio.sleep(self._delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Draft(
            tuple(
                (token + 1) % 2 if start + index in self._wrong else token
                for index, token in enumerate(self._output[start : start + max_tokens])
            ),
            "guessing",
        )


async def _session(file, drafter, controller, *, delay_s: float = 0.0):
    target = table_target(file) if not delay_s else SlowTarget(table_target(file), delay_s)
    pipeline = await pipeline_over(target, drafter)
    session = pipeline.session(PROMPT, SAMPLING)
    session.controller = controller
    return pipeline, session


async def test_the_next_draft_is_made_behind_the_draft_and_a_guess_at_the_bonus_token(file) -> None:
    output = alone(file, PROMPT, SAMPLING)
    drafter, controller = Guessing(output), Ahead()
    pipeline, session = await _session(file, drafter, controller)
    assert await run(pipeline, session) == output
    # The first token is the target's own; then rounds of K + 1, each guessed whole in the last.
    assert drafter.guesses[0] == (1 + K + 1, output[1 : 1 + K + 1])
    assert [outcome.ahead for outcome in controller.outcomes[:4]] == [None, True, True, True]
    assert session.stats.accepted == session.stats.drafted
    starts = [start for start, _ in drafter.asked]
    assert starts == sorted(set(starts))  # nothing was drafted twice


async def test_a_wrong_guess_discards_the_draft_made_ahead_and_costs_no_token(file) -> None:
    output = alone(file, PROMPT, SAMPLING)
    bonus = 1 + K  # the place of the first round's bonus token
    drafter, controller = Guessing(output, wrong={bonus}), Ahead()
    pipeline, session = await _session(file, drafter, controller, delay_s=0.005)
    assert await run(pipeline, session) == output
    assert [outcome.ahead for outcome in controller.outcomes[:2]] == [None, False]
    # The same place is drafted again, behind what the target really said.
    assert [start for start, _ in drafter.asked][:3] == [1, bonus + 1, bonus + 1]


async def test_a_rejected_draft_stops_the_one_made_ahead(file) -> None:
    output = alone(file, PROMPT, SAMPLING)
    drafter, controller = Guessing(output, wrong={2}, delay_s=0.02), Ahead()
    pipeline, session = await _session(file, drafter, controller, delay_s=0.005)
    assert await run(pipeline, session) == output
    assert drafter.cancelled >= 1
    assert controller.outcomes[0].accepted == 1
    assert controller.outcomes[1].ahead is False


async def test_a_draft_made_ahead_costs_no_waiting(file) -> None:
    output = alone(file, PROMPT, SAMPLING)
    drafter, controller = Guessing(output, delay_s=0.02), Ahead()
    pipeline, session = await _session(file, drafter, controller, delay_s=0.06)
    await run(pipeline, session)
    waited = {ahead: [] for ahead in (None, True)}
    for outcome in controller.outcomes:
        waited[outcome.ahead].append(outcome.draft_s)
    assert min(waited[None]) >= 0.015
    assert sorted(waited[True])[len(waited[True]) // 2] < 0.01
    assert min(outcome.elapsed_s for outcome in controller.outcomes) >= 0.05


async def test_a_draft_made_ahead_that_fails_counts_as_a_failure(file) -> None:
    output = alone(file, PROMPT, SAMPLING)

    class Failing(Guessing):
        async def propose(self, view, max_tokens) -> Draft:
            if view.guess:
                raise DraftFailed("not ahead")
            return await super().propose(view, max_tokens)

    drafter, controller = Failing(output), Ahead()
    pipeline, session = await _session(file, drafter, controller)
    assert await run(pipeline, session) == output
    assert session.stats.failures >= 1


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
async def test_a_failed_draft_made_ahead_in_vain_is_nobody_s_business(file) -> None:
    output = alone(file, PROMPT, SAMPLING)

    class Failing(Guessing):
        async def propose(self, view, max_tokens) -> Draft:
            if view.guess:
                raise DraftFailed("not ahead")
            return await super().propose(view, max_tokens)

    drafter, controller = Failing(output, wrong=range(60)), Ahead()
    pipeline, session = await _session(file, drafter, controller)
    assert await run(pipeline, session) == output
    assert session.stats.failures == 0


async def test_a_session_that_ends_stops_what_is_made_ahead(file) -> None:
    output = alone(file, PROMPT, SAMPLING)
    drafter, controller = Guessing(output, delay_s=0.01), Ahead()
    pipeline, session = await _session(file, drafter, controller, delay_s=0.05)
    before = asyncio.all_tasks()
    steps = pipeline.run(session)
    await anext(steps)
    await anext(steps)
    await steps.aclose()
    assert drafter.released == [session.session_id]
    assert asyncio.all_tasks() == before


async def test_a_closed_session_waits_for_no_draft_that_is_still_made_ahead(file) -> None:
    output = alone(file, PROMPT, SAMPLING)
    drafter, controller = Guessing(output), Ahead()
    pipeline, session = await _session(file, drafter, controller, delay_s=0.02)
    steps = pipeline.run(session)
    await anext(steps)
    drafter._delay_s = 30.0
    waiting = asyncio.create_task(anext(steps))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait([waiting])
    await steps.aclose()
    assert drafter.released == [session.session_id]


async def test_a_plan_to_run_alone_scores_what_was_made_ahead(file) -> None:
    output = alone(file, PROMPT, SAMPLING)

    class OnceAhead(Ahead):
        def choose(self, view: RoundView) -> Plan:
            plan = super().choose(view)
            return plan if len(self.views) == 1 else Plan(lookahead=0, run=7)

    drafter, controller = Guessing(output), OnceAhead()
    pipeline, session = await _session(file, drafter, controller)
    assert await run(pipeline, session) == output
    shadows = [outcome for outcome in controller.outcomes if outcome.shadow]
    assert [(outcome.drafted, outcome.accepted) for outcome in shadows] == [(K + 1, K + 1)]


async def test_nothing_is_made_ahead_for_a_drafter_that_cannot(file) -> None:
    output = alone(file, PROMPT, SAMPLING)
    drafter = ScriptedDrafter(lambda view, k: output[view.length - len(PROMPT) :][:k])
    controller = Ahead(ahead=False)
    pipeline, session = await _session(file, drafter, controller)
    assert await run(pipeline, session) == output
    assert not any(view.can_ahead for view in controller.views)


async def test_a_controller_is_told_what_can_be_made_ahead(file) -> None:
    output = alone(file, PROMPT, SAMPLING)
    controller = Ahead(ahead=False)
    pipeline, session = await _session(file, Guessing(output), controller)
    await run(pipeline, session)
    assert all(view.can_ahead for view in controller.views)


async def test_the_settings_say_whether_drafts_are_made_ahead(file) -> None:
    output = alone(file, PROMPT, SAMPLING)
    for ahead, expected in (("always", True), ("never", False), ("auto", False)):
        drafter = Guessing(output)
        configured = settings(controller="fixed", lookahead=K, ahead=ahead)
        pipeline = await pipeline_over(table_target(file), drafter, configured=configured)
        assert await run(pipeline, pipeline.session(PROMPT, SAMPLING)) == output
        assert bool(drafter.guesses) is expected


async def test_output_is_the_same_whatever_is_made_ahead(file) -> None:
    for sampling in (SAMPLING, SamplingParams(temperature=1.0, seed=5, max_tokens=60)):
        output = alone(file, PROMPT, sampling)
        for wrong in (range(0), range(0, 60, 2), range(0, 60, 5), range(60)):
            pipeline = await pipeline_over(
                table_target(file), Guessing(output, wrong), configured=settings()
            )
            session = pipeline.session(PROMPT, sampling)
            session.controller = Ahead()
            assert await run(pipeline, session) == output
