from __future__ import annotations

import pytest

from outrider.drafters.pace import Pace


def test_until_enough_is_known_the_deadline_is_the_longest() -> None:
    pace = Pace(0.06)
    for _ in range(7):
        pace.took(0.001, 4)
    assert pace.deadline_s(4) == 0.06


def test_it_is_twice_what_nineteen_in_twenty_drafts_took() -> None:
    pace = Pace(0.06)
    for _ in range(38):
        pace.took(0.01, 4)
    pace.took(0.05, 4)
    pace.took(0.05, 4)
    assert pace.deadline_s(4) == pytest.approx(0.02)
    pace.took(0.05, 4)
    assert pace.deadline_s(4) == 0.06


def test_it_never_falls_below_what_a_busy_machine_may_take() -> None:
    pace = Pace(0.06)
    for _ in range(20):
        pace.took(0.0001, 4)
    assert pace.deadline_s(4) == 0.005


def test_a_longer_draft_may_take_longer_in_proportion_and_a_shorter_one_as_long() -> None:
    pace = Pace(1.0)
    for _ in range(20):
        pace.took(0.01, 4)
    assert pace.deadline_s(16) == pytest.approx(0.08)
    assert pace.deadline_s(1) == pytest.approx(0.02)


def test_a_deadline_that_has_become_too_tight_widens_again() -> None:
    pace = Pace(0.06)
    for _ in range(64):
        pace.took(0.003, 4)
    given_up = 0
    while pace.deadline_s(4) < 0.02 and given_up < 10:  # now they take 20 ms
        pace.gave_up(pace.deadline_s(4), 4)
        given_up += 1
    assert given_up < 10
