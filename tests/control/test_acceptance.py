from __future__ import annotations

import random

import pytest

from outrider.control.acceptance import FleetAcceptance, SessionAcceptance


def feed(
    session: SessionAcceptance, rate: float, rounds: int, asked: int = 4, seed: int = 3
) -> None:
    rng = random.Random(seed)
    for _ in range(rounds):
        accepted = 0
        while accepted < asked and rng.random() < rate:
            accepted += 1
        session.observe(asked, accepted, asked)


def test_a_session_begins_with_what_the_fleet_saw() -> None:
    fleet = FleetAcceptance(8)
    for seed in range(30):
        feed(SessionAcceptance(fleet), 0.2, 10, seed=seed)
    assert SessionAcceptance(fleet).survival(8)[0] == pytest.approx(0.2, abs=0.07)


def test_a_session_comes_to_its_own_acceptance() -> None:
    fleet = FleetAcceptance(8)
    feed(SessionAcceptance(fleet), 0.2, 100)
    session = SessionAcceptance(fleet)
    feed(session, 0.9, 40)
    survival = session.survival(4)
    assert survival[0] == pytest.approx(0.9, abs=0.1)
    assert survival[3] == pytest.approx(0.9**4, abs=0.2)


def test_a_session_follows_a_change_of_its_text() -> None:
    session = SessionAcceptance(FleetAcceptance(8))
    feed(session, 0.95, 100)
    feed(session, 0.1, 60)
    assert session.survival(4)[0] < 0.3


def test_positions_out_of_reach_follow_those_that_were_reached() -> None:
    fleet = FleetAcceptance(8)
    good, bad = SessionAcceptance(fleet), SessionAcceptance(fleet)
    feed(good, 0.9, 30, asked=2)
    feed(bad, 0.1, 30, asked=2)
    assert good.survival(8)[5] > 0.2
    assert bad.survival(8)[-1] < 0.02


def test_an_optimist_hopes_for_more_the_less_is_known() -> None:
    fleet = FleetAcceptance(4)
    fresh, old = SessionAcceptance(fleet), SessionAcceptance(fleet)
    feed(old, 0.6, 60)
    hopes = [each.survival(1, optimism=1)[0] - each.survival(1)[0] for each in (fresh, old)]
    assert hopes[0] > 2 * hopes[1] > 0


def test_an_end_of_the_draft_counts_as_wrong_behind_it() -> None:
    fleet = FleetAcceptance(8)
    session = SessionAcceptance(fleet)
    for _ in range(50):
        session.observe(2, 2, 6)
    survival = session.survival(8)
    assert survival[1] > 0.7
    assert survival[2] < 0.3
    assert fleet.fill == pytest.approx(0.33, abs=0.05)


def test_silence_of_the_drafter_is_learned() -> None:
    fleet = FleetAcceptance(8)
    session = SessionAcceptance(fleet)
    for _ in range(50):
        session.observe(0, 0, 4)
    assert session.says < 0.15
    assert session.survival(8)[0] < 0.15
    assert SessionAcceptance(fleet).says < 0.2


def test_a_long_session_does_not_speak_for_the_fleet() -> None:
    fleet = FleetAcceptance(4)
    long = SessionAcceptance(fleet)
    feed(long, 0.95, 400)
    for seed in range(30):
        feed(SessionAcceptance(fleet), 0.05, 5, seed=seed)
    assert fleet.means()[0] < 0.35


def test_all_right_or_all_wrong_leaves_finite_estimates() -> None:
    for accepted in (0, 4):
        session = SessionAcceptance(FleetAcceptance(4))
        for _ in range(2000):
            session.observe(4, accepted, 4)
        assert 0 < session.survival(4)[0] < 1


def test_a_draft_longer_than_the_fleet_keeps_is_cut_to_it() -> None:
    session = SessionAcceptance(FleetAcceptance(2))
    session.observe(6, 6, 6)
    assert len(session.survival(9)) == 2
