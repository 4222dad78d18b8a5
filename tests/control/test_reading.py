"""A session's first draft takes its drafter through the prompt, which says nothing of the next."""

from __future__ import annotations

import pytest

from outrider.control import Fleet, GoodputController, Plan, RoundOutcome, RoundView

STEP_S, DRAFT_S = 0.1, 0.01
CONTEXT = 500


def view(remaining: int = 200, context: int = CONTEXT) -> RoundView:
    return RoundView(remaining, max_draft_tokens=16, context=context)


def judged(plan: Plan, *, draft_s: float) -> RoundOutcome:
    """All of a draft held."""
    drafted = plan.lookahead
    return RoundOutcome(
        drafted,
        drafted,
        draft_s=draft_s,
        elapsed_s=STEP_S,
        step_s=STEP_S,
        batch_tokens=drafted + 1,
        context=CONTEXT,
    )


def plain() -> RoundOutcome:
    return RoundOutcome(0, 0, elapsed_s=STEP_S, step_s=STEP_S, context=CONTEXT, further=True)


def after_a_session(fleet: Fleet, *, reading_s: float) -> None:
    """A session whose drafts all hold and take next to nothing, the first of them apart."""
    controller = GoodputController(fleet)
    for index in range(12):
        plan = controller.choose(view())
        assert plan.lookahead > 0
        draft_s = DRAFT_S * plan.lookahead + (reading_s if index == 0 else 0.0)
        controller.observe(judged(plan, draft_s=draft_s))
        controller.observe(plain())


def test_what_reading_a_prompt_takes_is_no_cost_of_the_drafts_behind_it() -> None:
    fleet = Fleet()
    after_a_session(fleet, reading_s=3.0)
    assert fleet.cost.draft_s(4) == pytest.approx(4 * DRAFT_S, rel=0.1)
    assert fleet.cost.read_s(CONTEXT) == pytest.approx(3.0, rel=0.1)
    assert fleet.cost.read_s(2 * CONTEXT) == pytest.approx(6.0, rel=0.1)


def test_the_target_runs_on_while_a_drafter_reads_that_takes_longer_than_a_step() -> None:
    fleet = Fleet()
    after_a_session(fleet, reading_s=0.5)
    controller = GoodputController(fleet)
    plan = controller.choose(view())
    assert plan.lookahead == 0
    assert plan.shadow > 0
    assert 5 <= plan.run <= 7  # as many steps as reading and the shadow draft should take
    assert controller.explain().kind == "reading"
    controller.observe(RoundOutcome(4, 4, shadow=True, draft_s=0.5, context=CONTEXT))
    assert controller.choose(view()).lookahead > 0


def test_a_drafter_that_reads_within_a_step_is_waited_for() -> None:
    fleet = Fleet()
    after_a_session(fleet, reading_s=0.05)
    assert GoodputController(fleet).choose(view()).lookahead > 0


def read_beside(fleet: Fleet, *, token_s: float) -> None:
    """A session that reads while the target takes so long for a token."""
    controller = GoodputController(fleet)
    assert controller.choose(view()).shadow > 0
    for _ in range(10):
        controller.observe(
            RoundOutcome(0, 0, elapsed_s=token_s, step_s=STEP_S, context=CONTEXT, further=True)
        )
    controller.observe(RoundOutcome(4, 4, shadow=True, draft_s=5.0, context=CONTEXT))


def test_a_prompt_is_not_read_for_an_output_too_short_to_repay_what_the_target_loses() -> None:
    fleet = Fleet()
    after_a_session(fleet, reading_s=5.0)
    usual = fleet.cost.plain_s
    read_beside(fleet, token_s=2 * STEP_S)
    assert fleet.cost.lost_by_reading_s(CONTEXT) == pytest.approx(2.5, rel=0.1)
    assert fleet.cost.plain_s == usual
    controller = GoodputController(fleet)
    assert controller.choose(view(remaining=20)) == Plan(0, run=19)
    assert controller.explain().kind == "plain"
    assert GoodputController(fleet).choose(view(remaining=200)).shadow > 0


def test_a_drafter_elsewhere_reads_for_short_outputs_too_since_the_target_loses_nothing() -> None:
    fleet = Fleet()
    after_a_session(fleet, reading_s=5.0)
    read_beside(fleet, token_s=STEP_S)
    assert GoodputController(fleet).choose(view(remaining=20)).shadow > 0


def test_a_first_draft_that_never_came_leaves_the_prompt_unread() -> None:
    fleet = Fleet()
    after_a_session(fleet, reading_s=0.05)
    before = fleet.cost.draft_s(0), fleet.cost.read_s(CONTEXT)
    controller = GoodputController(fleet)
    assert controller.choose(view()).lookahead > 0
    controller.observe(RoundOutcome(0, 0, draft_s=2.0, elapsed_s=STEP_S, step_s=STEP_S))
    assert (fleet.cost.draft_s(0), fleet.cost.read_s(CONTEXT)) == before
    controller.observe(RoundOutcome(4, 4, shadow=True, draft_s=4.0, context=CONTEXT))
    assert fleet.cost.read_s(CONTEXT) > before[1]


def test_a_draft_beside_the_target_shows_that_drafts_became_cheaper() -> None:
    fleet = Fleet()
    after_a_session(fleet, reading_s=0.0)
    controller = GoodputController(fleet)
    controller.observe(judged(controller.choose(view()), draft_s=0.1))
    for _ in range(40):
        controller.observe(RoundOutcome(4, 0, shadow=True, draft_s=0.004, context=CONTEXT))
    assert fleet.cost.draft_s(4) < 2 * DRAFT_S
    cheap = fleet.cost.draft_s(4)
    controller.observe(RoundOutcome(4, 0, shadow=True, draft_s=9.0, context=CONTEXT))
    assert fleet.cost.draft_s(4) == cheap  # the target's cores were busy


def test_the_second_draft_of_all_is_no_longer_than_the_first_whose_time_was_that_of_reading() -> (
    None
):
    controller = GoodputController(Fleet(), initial=4)
    first = controller.choose(view())
    controller.observe(judged(first, draft_s=3.0))
    assert controller.choose(view()) == first == Plan(4)
