"""What is noted of rounds: told in answers, and known of acceptance."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from outrider.control import Decision, Plan, create_controller
from outrider.drafters import NgramDrafter
from outrider.pipeline.round_log import RoundLog
from outrider.types import NO_DRAFT, Draft, Verification
from tests.pipeline.scenes import (
    GREEDY,
    PROMPT,
    ScriptedDrafter,
    pipeline_over,
    right,
    run,
    settings,
    table_target,
)

MOST = 16
FIXED = create_controller(settings(controller="fixed").speculation)


def played(*rounds: tuple[int, int, int, int], most: int = 0) -> RoundLog:
    """Rounds of (position, asked, drafted, accepted), each answered once."""
    log = RoundLog(most)
    for position, asked, drafted, accepted in rounds:
        plan = Plan(asked, why="fixed")
        log.planned(position, plan, FIXED)
        log.drafted(plan, Draft(tuple(range(drafted)), "me") if drafted else NO_DRAFT)
        log.answered(Verification(1, position, (0,) * (accepted + 1), drafted, accepted))
    return log


def test_behind_a_rejected_token_acceptance_is_known_within_the_draft() -> None:
    assert played((1, 4, 4, 2)).stretches(9, MOST) == [([2, 1, 0], [16, 16, 16])]


def test_a_drafter_that_says_less_than_asked_has_no_more_to_say() -> None:
    assert played((1, 8, 4, 2)).stretches(9, MOST) == [([2, 1, 0], [4, 3, 2])]


def test_of_a_draft_that_held_whole_no_more_is_claimed_than_was_confirmed() -> None:
    assert played((1, 2, 2, 2)).stretches(9, MOST) == [([2, 1, 0], [2, 1, 0])]


def test_a_drafter_with_nothing_to_say_is_known_to_have_nothing() -> None:
    assert played((1, 4, 0, 0), (2, 4, 4, 0)).stretches(9, MOST) == [([0, 0], [0, 16])]


def test_where_the_target_ran_alone_the_trace_is_split() -> None:
    log = played((1, 2, 2, 0), (2, 0, 0, 0), (3, 2, 2, 0))
    assert log.stretches(9, MOST) == [([0], [16]), ([0], [16])]


def test_a_shadow_draft_fills_the_gap() -> None:
    log = played((1, 2, 2, 0), (2, 0, 0, 0), (3, 2, 2, 0))
    log.scored(2, 4, 0)
    assert log.stretches(9, MOST) == [([0, 0, 0], [16, 4, 16])]


def test_nothing_is_known_behind_the_end_of_the_output() -> None:
    assert played((1, 4, 4, 3)).stretches(3, MOST) == [([3, 2], [16, 16])]


def test_a_failed_draft_says_nothing_of_the_drafter() -> None:
    log = RoundLog(1)
    log.planned(1, Plan(4, why="fixed"), FIXED)
    log.drafted(Plan(0, why="failed"), NO_DRAFT)
    log.answered(Verification(1, 1, (0,)))
    assert log.stretches(9, MOST) == []
    assert (log.rounds[0].lookahead, log.rounds[0].why) == (4, "failed")


def test_a_run_alone_is_one_round() -> None:
    log = RoundLog(8)
    log.planned(1, Plan(0, run=2, why="window"), FIXED)
    log.drafted(Plan(0, run=2, why="window"), NO_DRAFT)
    for position in (1, 2, 3):
        log.answered(Verification(1, position, (0,)))
    assert [each.tokens for each in log.rounds] == [3]


def test_only_the_first_rounds_are_kept() -> None:
    log = played((1, 1, 1, 0), (2, 1, 1, 0), (3, 1, 1, 0), most=2)
    assert [each.position for each in log.rounds] == [1, 2]
    assert log.stretches(9, 1) == [([0, 0, 0], [1, 1, 1])]


def test_a_controller_that_explains_itself_tells_what_it_expected() -> None:
    class Explained:
        def choose(self, view):
            return Plan(2)

        def observe(self, outcome):
            """Learns nothing."""

        def explain(self):
            return Decision(2, "draft", goodput=(10.0, 12.0, 14.0))

    log = RoundLog(1)
    log.planned(1, Plan(2), Explained())
    assert (log.rounds[0].why, log.rounds[0].plain_rate, log.rounds[0].chosen_rate) == (
        "draft",
        10.0,
        14.0,
    )


@pytest.mark.anyio
async def test_a_traced_session_tells_of_its_rounds_in_order(file) -> None:
    configured = settings(controller="fixed", lookahead=3)
    drafter = ScriptedDrafter(right(file))
    pipeline = await pipeline_over(table_target(file), drafter, configured=configured)
    session = pipeline.session(PROMPT, GREEDY, traced=99)
    await run(pipeline, session)
    assert session.log is not None
    rounds = session.log.rounds
    assert rounds[0].why == "first token"
    assert {each.source for each in rounds[1:-1]} == {"scripted"}
    assert sum(each.tokens for each in rounds) == session.output_length
    assert sum(each.drafted for each in rounds) == session.stats.drafted


@pytest.mark.anyio
async def test_rounds_with_the_default_controller_say_what_was_expected(file) -> None:
    configured = settings(controller="goodput")
    pipeline = await pipeline_over(table_target(file), NgramDrafter(), configured=configured)
    session = pipeline.session(PROMPT, GREEDY, traced=99)
    await run(pipeline, session)
    assert session.log is not None
    assert all(each.why for each in session.log.rounds)
    assert any(each.plain_rate for each in session.log.rounds)


@pytest.mark.anyio
async def test_at_debug_level_every_round_is_logged(file) -> None:
    configured = settings(controller="fixed", lookahead=3)
    drafter = ScriptedDrafter(right(file))
    pipeline = await pipeline_over(table_target(file), drafter, configured=configured)
    with capture_logs() as lines:
        session = pipeline.session(PROMPT, GREEDY)
        await run(pipeline, session)
    rounds = [line for line in lines if line["event"] == "round"]
    assert {line["session"] for line in rounds} == {session.session_id}
    assert sum(line["tokens"] for line in rounds) == session.output_length
    assert {line["log_level"] for line in rounds} == {"debug"}


def test_without_a_session_named_nothing_is_logged() -> None:
    log = played((1, 1, 1, 0))
    with capture_logs() as lines:
        log.ended()
    assert lines == []
