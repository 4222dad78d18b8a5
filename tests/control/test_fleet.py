from __future__ import annotations

import gc

import pytest

from outrider.control import Fleet, GoodputController, RoundOutcome


def stepped(fleet: Fleet, *, batch: int = 1, times: int = 20) -> Fleet:
    """Steps of 10 ms, shared by so many sessions."""
    for _ in range(times):
        fleet.cost.observe(
            RoundOutcome(
                0,
                0,
                elapsed_s=0.010,
                step_s=0.010,
                batch_size=batch,
                batch_tokens=batch,
                further=True,
            ),
            asked=0,
            ahead=False,
        )
    return fleet


def test_a_session_that_nobody_holds_any_more_has_left() -> None:
    fleet = Fleet()
    sessions = [GoodputController(fleet) for _ in range(3)]
    assert fleet.sessions == 3
    sessions.pop()
    gc.collect()
    assert fleet.sessions == 2


def test_a_lone_session_takes_nothing_from_others() -> None:
    assert stepped(Fleet()).price() == 0


def test_a_longer_step_costs_all_who_share_it() -> None:
    fleet = stepped(Fleet(), batch=9)
    assert fleet.price() == pytest.approx(8 / 0.010, rel=0.02)


def test_the_price_follows_the_rates_of_the_sessions_that_are_there() -> None:
    fleet = stepped(Fleet(), batch=3)
    one, other = GoodputController(fleet), GoodputController(fleet)
    one.rate, other.rate = 100.0, 300.0
    assert fleet.price() == pytest.approx(2 * 200.0, rel=0.02)
    one.rate = 500.0
    prices = [fleet.price() for _ in range(16)]
    assert prices[0] == pytest.approx(2 * 200.0, rel=0.02)  # computed now and then
    assert prices[-1] == pytest.approx(2 * 400.0, rel=0.02)


def test_finding_out_may_cost_a_small_share_of_decoding() -> None:
    fleet = stepped(Fleet())
    fleet.spend(fleet.allowance_s)
    assert fleet.affords_in(0.006) == pytest.approx(100, abs=2)
    fleet.earn(1.0)
    assert fleet.affords_in(0.0059) == 0
    fleet.earn(1e6)
    assert fleet.allowance_s < 1.0  # no fortune is saved


def test_in_debt_only_what_costs_nothing_is_tried() -> None:
    fleet = stepped(Fleet())
    fleet.spend(fleet.allowance_s + 0.06)
    assert fleet.affords_in(0.0) == 0
    assert fleet.affords_in(0.0006) == pytest.approx(10, abs=1)


def test_hits_of_drafts_made_ahead_are_counted_against_what_was_predicted() -> None:
    fleet = Fleet()
    for _ in range(100):
        fleet.add_hit(0.8, hit=False)
    assert fleet.hits[0] / fleet.hits[1] < 0.1
