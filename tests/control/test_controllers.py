from __future__ import annotations

import pytest

from outrider.config import SpeculationSettings
from outrider.control import (
    FixedController,
    Fleet,
    GoodputController,
    Plan,
    RoundOutcome,
    RoundView,
    WindowController,
    create_controller,
)

ROOMY = RoundView(remaining=100, max_draft_tokens=16)


def feed(controller: WindowController, accepted: int, drafted: int, times: int) -> None:
    for _ in range(times):
        controller.observe(RoundOutcome(drafted=drafted, accepted=accepted))


def test_fixed_always_drafts_as_many_tokens() -> None:
    controller = FixedController(5)
    controller.observe(RoundOutcome(drafted=5, accepted=0))
    assert controller.choose(ROOMY) == Plan(lookahead=5)


def test_fixed_at_zero_runs_alone_to_the_end_of_the_budget() -> None:
    assert FixedController(0).choose(ROOMY) == Plan(lookahead=0, run=99)


@pytest.mark.parametrize("controller", [FixedController(5), WindowController(initial=5)])
def test_the_lookahead_is_clamped_to_what_is_allowed(controller) -> None:
    assert controller.choose(RoundView(remaining=3, max_draft_tokens=2)).lookahead == 2
    assert controller.choose(RoundView(remaining=9, max_draft_tokens=0)) == Plan(0, run=8)


def test_window_adds_one_while_the_mean_acceptance_is_above_the_upper_bound() -> None:
    controller = WindowController(initial=4, window=4)
    feed(controller, accepted=4, drafted=4, times=3)
    assert controller.lookahead == 4  # the window is not full yet
    feed(controller, accepted=4, drafted=4, times=2)
    assert controller.lookahead == 6


def test_window_takes_one_while_the_mean_acceptance_is_below_the_lower_bound() -> None:
    controller = WindowController(initial=4, window=4)
    feed(controller, accepted=1, drafted=4, times=5)
    assert controller.lookahead == 2


def test_window_stays_between_its_bounds() -> None:
    controller = WindowController(initial=4, minimum=2, maximum=6, window=1)
    feed(controller, accepted=0, drafted=4, times=20)
    assert controller.lookahead == 2
    feed(controller, accepted=4, drafted=4, times=20)
    assert controller.lookahead == 6


def test_window_does_not_move_at_the_bounds_of_its_thresholds() -> None:
    controller = WindowController(initial=4, window=1)
    feed(controller, accepted=16, drafted=20, times=3)  # exactly 0.80
    feed(controller, accepted=7, drafted=20, times=3)  # exactly 0.35
    assert controller.lookahead == 4


def test_window_forgets_rounds_older_than_the_window() -> None:
    controller = WindowController(initial=4, window=2)
    feed(controller, accepted=0, drafted=4, times=2)
    feed(controller, accepted=4, drafted=4, times=2)
    assert controller.lookahead == 4  # down, unchanged at the mean of one half, up again


def test_window_at_zero_runs_in_stretches_beside_shadow_drafts() -> None:
    controller = WindowController(initial=0, stretch=16, shadow=4)
    assert controller.choose(ROOMY) == Plan(lookahead=0, run=15, shadow=4)
    assert controller.choose(RoundView(remaining=3, max_draft_tokens=2)) == Plan(0, run=2, shadow=2)


def test_window_rises_from_zero_by_shadow_drafts() -> None:
    controller = WindowController(initial=0, window=3)
    for _ in range(3):
        controller.observe(RoundOutcome(drafted=4, accepted=4, shadow=True))
    assert controller.lookahead == 1


def test_window_asks_ever_more_rarely_while_shadow_drafts_fail() -> None:
    controller = WindowController(initial=0, window=3, stretch=16)
    runs = []
    for _ in range(7):
        runs.append(controller.choose(RoundView(remaining=1000, max_draft_tokens=16)).run)
        controller.observe(RoundOutcome(drafted=4, accepted=0, shadow=True))
    assert runs == [15, 31, 63, 127, 255, 255, 255]
    controller.observe(RoundOutcome(drafted=4, accepted=4, shadow=True))
    assert controller.choose(ROOMY).run == 15


def test_window_without_room_never_asks_for_a_shadow_draft() -> None:
    assert WindowController(maximum=0).choose(ROOMY) == Plan(lookahead=0, run=99)


def test_impossible_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="minimum 5 and maximum 2"):
        WindowController(minimum=5, maximum=2)


def test_settings_choose_the_controller_and_its_start() -> None:
    fixed = create_controller(SpeculationSettings(controller="fixed", lookahead=7))
    assert fixed.choose(ROOMY) == Plan(lookahead=7)
    window = create_controller(SpeculationSettings(controller="window", lookahead=3))
    assert window.choose(ROOMY) == Plan(lookahead=3)


@pytest.mark.parametrize("kind", ["fixed", "window"])
def test_a_request_may_lower_the_maximum_but_not_raise_it(kind) -> None:
    settings = SpeculationSettings(controller=kind, lookahead=8, max_lookahead=10)
    assert create_controller(settings, max_lookahead=2).choose(ROOMY).lookahead == 2
    assert create_controller(settings, max_lookahead=99).choose(ROOMY).lookahead == 8
    assert create_controller(settings, max_lookahead=0).choose(ROOMY) == Plan(0, run=99)


def test_window_ignores_plain_steps() -> None:
    controller = WindowController(initial=4, window=1)
    controller.observe(RoundOutcome(drafted=0, accepted=0, further=True))
    assert controller.lookahead == 4


def test_goodput_is_the_default_and_shares_a_fleet_if_given_one() -> None:
    fleet = Fleet(16)
    shared = create_controller(SpeculationSettings(lookahead=3), fleet=fleet, max_lookahead=8)
    assert isinstance(shared, GoodputController)
    assert fleet.sessions == 1
    alone = create_controller(SpeculationSettings(lookahead=3))
    assert fleet.sessions == 1
    assert alone.choose(ROOMY) == shared.choose(ROOMY) == Plan(lookahead=3)
