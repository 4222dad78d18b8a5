"""Which groups the watchdog still watches."""

from __future__ import annotations

from outrider.bench.baselines.watchdog import watch


def test_only_groups_that_were_not_taken_back_are_watched() -> None:
    assert watch(["+5\n", "+7\n", "-5\n", "+9\n"]) == {7, 9}


def test_taking_back_twice_is_no_fault() -> None:
    assert watch(["+5\n", "-5\n", "-5\n"]) == set()
