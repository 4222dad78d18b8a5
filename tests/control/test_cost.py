from __future__ import annotations

import pytest

from outrider.control.base import RoundOutcome
from outrider.control.cost import CostModel


def judged(drafted: int = 4, *, ahead: bool | None = None, draft_s: float = 0.004) -> RoundOutcome:
    return RoundOutcome(
        drafted,
        0,
        draft_s=draft_s,
        elapsed_s=0.022,
        step_s=0.012,
        batch_size=1,
        batch_tokens=drafted + 1,
        ahead=ahead,
    )


def plain(*, further: bool = True, batch: int = 1, elapsed_s: float = 0.0105) -> RoundOutcome:
    return RoundOutcome(
        0,
        0,
        elapsed_s=elapsed_s,
        step_s=0.010,
        batch_size=batch,
        batch_tokens=batch,
        further=further,
    )


def test_before_anything_was_measured_only_steps_take_time() -> None:
    cost = CostModel()
    assert cost.trip_s == cost.draft_s(8) == cost.draft_s(0) == cost.sharers == 0
    assert 0 < cost.plain_s < cost.step_s(8) < 2 * cost.plain_s


def test_a_round_teaches_its_parts() -> None:
    cost = CostModel()
    for _ in range(10):
        cost.observe(judged(), asked=4, ahead=False)
    assert cost.trip_s == pytest.approx(0.010)
    assert cost.draft_s(4) == pytest.approx(0.004)
    assert cost.step_s(4) == pytest.approx(0.012, rel=0.01)


def test_a_run_alone_pays_no_trip() -> None:
    cost = CostModel()
    cost.observe(plain(further=False, elapsed_s=0.040), asked=0, ahead=False)
    for _ in range(10):
        cost.observe(plain(), asked=0, ahead=False)
    assert cost.trip_s == pytest.approx(0.030)
    assert cost.plain_s == pytest.approx(0.0105, rel=0.01)


def test_a_hiccup_of_two_seconds_changes_next_to_nothing() -> None:
    cost = CostModel()
    for _ in range(10):
        cost.observe(plain(), asked=0, ahead=False)
        cost.observe(judged(), asked=4, ahead=False)
    before = cost.plain_s, cost.trip_s, cost.step_s(4)
    cost.observe(
        RoundOutcome(4, 0, draft_s=2.0, elapsed_s=4.0, step_s=2.0, batch_tokens=5),
        asked=4,
        ahead=False,
    )
    assert (cost.plain_s, cost.trip_s, cost.step_s(4)) == pytest.approx(before, rel=0.05)
    assert cost.draft_s(4) == pytest.approx(0.004, rel=0.05)


def test_a_drafter_with_nothing_to_say_has_a_time_of_its_own() -> None:
    cost = CostModel()
    for _ in range(5):
        cost.observe(judged(), asked=4, ahead=False)
        cost.observe(judged(0, draft_s=0.001), asked=4, ahead=False)
    assert cost.draft_s(0) == pytest.approx(0.001)
    assert cost.draft_s(4) == pytest.approx(0.004)


def test_a_load_is_followed_up_and_down() -> None:
    cost = CostModel()
    for batch in (64, 8):
        for _ in range(30):
            cost.observe(plain(batch=batch), asked=0, ahead=False)
        assert cost.sharers == pytest.approx(batch - 1, abs=0.1)


def test_drafting_ahead_is_measured_apart_from_other_rounds() -> None:
    cost = CostModel()
    for _ in range(5):
        cost.observe(judged(), asked=4, ahead=False)
    assert cost.ahead_wait_s(4) == 0  # the next 5 tokens fit into trip and step
    for _ in range(5):
        slow = RoundOutcome(4, 4, elapsed_s=0.025, step_s=0.012, batch_tokens=5, ahead=True)
        cost.observe(slow, asked=4, ahead=True)
    assert cost.ahead_drag_s() == pytest.approx(0.003)
    assert cost.ahead_wait_s(4) == 0
    assert cost.ahead_vain_s(4) == pytest.approx(0.004)
    for _ in range(5):
        cost.observe(judged(ahead=False, draft_s=0.006), asked=4, ahead=True)
    assert cost.ahead_vain_s(4) == pytest.approx(0.006)
    assert cost.trip_s == pytest.approx(0.010)


def test_what_drafting_ahead_cost_long_ago_is_forgotten() -> None:
    cost = CostModel()
    cost.observe(judged(), asked=4, ahead=False)
    cost.observe(
        RoundOutcome(4, 0, elapsed_s=0.030, step_s=0.020, batch_tokens=5), asked=4, ahead=True
    )
    before = cost.ahead_drag_s()
    assert before == pytest.approx(0.008)
    for _ in range(1000):
        cost.observe(judged(), asked=4, ahead=False)
    assert cost.ahead_drag_s() < 0.2 * before
