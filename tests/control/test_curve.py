from __future__ import annotations

import random

import pytest

from outrider.control.curve import Curve, RobustMean


def learned(times: dict[int, float], rounds: int = 20) -> Curve:
    curve = Curve(growth=0.02, initial=0.02)
    for _ in range(rounds):
        for tokens, seconds in times.items():
            curve.add(tokens, seconds)
    return curve


def test_a_mean_follows_its_values() -> None:
    mean = RobustMean()
    rng = random.Random(1)
    for _ in range(200):
        mean.add(rng.gauss(10, 1))
    assert mean.value == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("calm", [1, 3, 50])
def test_a_hiccup_hardly_moves_a_mean_wherever_it_comes(calm) -> None:
    mean = RobustMean()
    for _ in range(calm):
        mean.add(0.010)
    mean.add(2.0)
    for _ in range(4):
        mean.add(0.010)
    assert mean.value == pytest.approx(0.010, rel=0.05)


def test_a_mean_follows_a_lasting_change_within_twenty_values() -> None:
    mean = RobustMean()
    for _ in range(50):
        mean.add(0.010)
    for _ in range(20):
        mean.add(0.050)
    assert mean.value == pytest.approx(0.050, rel=0.2)


def test_a_curve_begins_with_what_is_known_in_advance() -> None:
    assert Curve(growth=0.02, initial=0.02).at(10) == pytest.approx(0.024)
    assert Curve(growth=1000, initial=0.0).at(4) == 0


def test_one_measured_count_is_carried_to_others_by_the_growth_known_in_advance() -> None:
    flat, steep = Curve(growth=0.02, initial=0.02), Curve(growth=1000, initial=0.0)
    for _ in range(5):
        flat.add(1, 0.0102)
        steep.add(4, 0.004)
    assert flat.at(5) == pytest.approx(0.011, rel=0.01)
    assert steep.at(8) == pytest.approx(0.008, rel=0.01)


def test_a_line_is_found_between_and_beyond_what_was_measured() -> None:
    curve = learned({count: 0.0071 + 0.000021 * count for count in (64, 128, 320)})
    for count in (64, 192, 256, 576):
        assert curve.at(count) == pytest.approx(0.0071 + 0.000021 * count, rel=0.03)


def test_measured_counts_keep_what_does_not_lie_on_the_line() -> None:
    times = {1: 60, 2: 61, 4: 52, 6: 59, 8: 71, 12: 101, 16: 122}
    curve = learned({count: ms / 1000 for count, ms in times.items()})
    for count, ms in times.items():
        assert curve.at(count) == pytest.approx(ms / 1000, rel=0.1)


def test_a_change_of_everything_reaches_counts_that_are_not_measured_now() -> None:
    curve = learned({1: 0.010, 5: 0.012})
    for _ in range(40):
        curve.add(1, 0.020)
    assert curve.at(1) == pytest.approx(0.020, rel=0.05)
    assert curve.at(5) > 0.017


def test_no_time_is_below_zero() -> None:
    curve = learned({1: -0.5, 4: 0.010, 2: 0.0})
    assert curve.at(0) >= 0
    assert curve.at(1) >= 0


def test_what_takes_longer_with_fewer_tokens_is_taken_for_noise() -> None:
    curve = learned({1: 0.012, 3: 0.010})
    assert curve.at(40) >= curve.at(30)
