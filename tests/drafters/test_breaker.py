"""The circuit breaker, with a clock of the test's own."""

from __future__ import annotations

import pytest

from outrider.drafters.breaker import Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock) -> Breaker:
    return Breaker("a:1", failures=3, first_s=1.0, longest_s=3.0, clock=clock)


def open_by_failures(breaker: Breaker) -> None:
    for _ in range(3):
        breaker.failed()


def test_it_opens_after_so_many_failures_in_a_row_and_says_for_how_long(breaker) -> None:
    breaker.failed()
    breaker.failed()
    breaker.succeeded()
    breaker.failed()
    breaker.failed()
    assert breaker.refusal() is None
    breaker.failed()
    assert breaker.refusal() == "draft server a:1 is cut off for 1.0 s"


def test_only_one_may_probe_and_only_when_the_time_is_over(breaker, clock) -> None:
    open_by_failures(breaker)
    assert not breaker.begin_probe()
    clock.now += 1.0
    assert breaker.begin_probe()
    assert not breaker.begin_probe()
    assert breaker.refusal() is not None  # all others wait for what comes of it


def test_a_closed_one_is_not_probed(breaker) -> None:
    assert not breaker.begin_probe()


def test_a_bad_probe_opens_it_for_twice_as_long_up_to_the_longest(breaker, clock) -> None:
    open_by_failures(breaker)
    for lasts in (1.0, 2.0, 3.0, 3.0):
        assert breaker.refusal() == f"draft server a:1 is cut off for {lasts:.1f} s"
        clock.now += lasts - 0.01
        assert not breaker.begin_probe()
        clock.now += 0.02
        assert breaker.begin_probe()
        breaker.end_probe(good=False)


def test_a_good_probe_closes_it_on_probation_where_one_failure_opens_it(breaker, clock) -> None:
    open_by_failures(breaker)
    clock.now += 1.0
    assert breaker.begin_probe()
    breaker.end_probe(good=True)
    assert breaker.refusal() is None
    breaker.failed()
    assert breaker.refusal() == "draft server a:1 is cut off for 2.0 s"


def test_a_success_ends_probation_and_makes_it_patient_again(breaker, clock) -> None:
    open_by_failures(breaker)
    clock.now += 1.0
    breaker.begin_probe()
    breaker.end_probe(good=True)
    breaker.succeeded()
    breaker.failed()
    breaker.failed()
    assert breaker.refusal() is None
    breaker.failed()
    assert breaker.refusal() == "draft server a:1 is cut off for 1.0 s"


def test_calls_that_end_while_it_is_open_change_nothing(breaker, clock) -> None:
    open_by_failures(breaker)
    breaker.succeeded()
    breaker.failed()
    assert breaker.refusal() == "draft server a:1 is cut off for 1.0 s"


def test_a_busy_server_is_left_alone_for_a_while_without_having_failed(breaker, clock) -> None:
    breaker.busy(2.0)
    assert breaker.refusal() == "draft server a:1 is busy for 2.0 s"
    assert breaker.failed_in_row == 0
    clock.now += 2.0
    assert breaker.refusal() is None
    breaker.busy(1e9)
    assert breaker.refusal() == "draft server a:1 is busy for 3.0 s"
