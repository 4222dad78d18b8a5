from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.metrics import SpeedMeter
from outrider.types import Verification


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def plain(step_s: float = 0.1, batch_size: int = 1) -> Verification:
    return Verification(1, 5, (1,), step_s=step_s, batch_size=batch_size, batch_tokens=batch_size)


def speculative(emitted: int, drafted: int, accepted: int, batch_size: int = 1) -> Verification:
    return Verification(
        1, 5, (1,) * emitted, drafted=drafted, accepted=accepted, batch_size=batch_size
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock) -> SpeedMeter:
    return SpeedMeter(window_s=10.0, clock=clock)


def test_nothing_decoded_means_no_speed(meter) -> None:
    assert meter.speed() is None


def test_tokens_per_second_count_the_first_interval_too(meter, clock) -> None:
    for _ in range(10):
        clock.now += 0.1
        meter.observe(plain(), 0.1)
    assert meter.speed().tokens_per_s == pytest.approx(10.0)


def test_without_drafts_there_is_neither_acceptance_nor_a_speed_up(meter, clock) -> None:
    for _ in range(10):
        clock.now += 0.1
        meter.observe(plain(), 0.1)
    speed = meter.speed()
    assert speed.speedup is None
    assert speed.acceptance is None


def test_a_step_that_also_read_a_prompt_is_no_plain_step(meter) -> None:
    meter.observe(plain(0.1), 0.1)
    meter.observe(replace(plain(0.9), batch_tokens=64), 0.9)
    meter.observe(speculative(emitted=5, drafted=4, accepted=4), 0.5)
    assert meter.speed().speedup == pytest.approx((0.1 + 0.1 + 5 * 0.1) / (0.1 + 0.9 + 0.5))


def test_what_is_forgotten_no_longer_counts_but_plain_steps_stay_known(meter) -> None:
    meter.observe(plain(0.1), 0.1)
    meter.forget()
    assert meter.speed() is None
    meter.observe(speculative(emitted=5, drafted=4, accepted=4), 0.25)
    assert meter.speed().speedup == pytest.approx(2.0)


def test_the_speed_up_is_plain_steps_saved_over_time_taken(meter, clock) -> None:
    clock.now += 0.1
    meter.observe(plain(0.1), 0.1)
    clock.now += 0.2
    meter.observe(speculative(emitted=5, drafted=4, accepted=4), 0.2)
    speed = meter.speed()
    assert speed.speedup == pytest.approx((0.1 + 5 * 0.1) / (0.1 + 0.2))
    assert speed.acceptance == 1.0


def test_without_a_measured_plain_step_no_speed_up_is_claimed(meter) -> None:
    meter.observe(speculative(emitted=5, drafted=4, accepted=4), 0.2)
    assert meter.speed().speedup is None


def test_the_plain_step_of_the_nearest_batch_size_is_used(meter) -> None:
    meter.observe(plain(0.1, batch_size=1), 0.1)
    meter.observe(plain(0.3, batch_size=8), 0.3)
    meter.observe(speculative(emitted=2, drafted=2, accepted=1, batch_size=7), 0.3)
    assert meter.speed().speedup == pytest.approx((0.1 + 0.3 + 2 * 0.3) / 0.7)


def test_what_is_older_than_the_window_no_longer_counts(meter, clock) -> None:
    meter.observe(plain(), 0.1)
    clock.now += 11
    assert meter.speed() is None
