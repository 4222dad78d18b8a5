from __future__ import annotations

import itertools
import random

import pytest

from outrider.control import FixedController, Plan, RoundOutcome, RoundView, WindowController
from outrider.errors import ConfigError
from outrider.replay import Clock, Trace, World, clairvoyant_ms, play

WORLD = World(rtt_ms=5.0, base_ms=10.0, token_ms=1.0, draft_ms=2.0)


class Scripted:
    """Follows a list of plans, then runs alone."""

    def __init__(self, *plans: Plan) -> None:
        self.plans = list(plans)
        self.views: list[RoundView] = []
        self.outcomes: list[RoundOutcome] = []

    def choose(self, view: RoundView) -> Plan:
        self.views.append(view)
        return self.plans.pop(0) if self.plans else Plan(0, run=view.remaining - 1)

    def observe(self, outcome: RoundOutcome) -> None:
        self.outcomes.append(outcome)


def played(trace: Trace, *plans: Plan, world: World = WORLD) -> tuple[Scripted, float]:
    controller, clock = Scripted(*plans), Clock(world)
    play(trace, controller, world, clock, maximum=16)
    return controller, clock.now_ms


def test_a_run_alone_pays_one_trip() -> None:
    controller, spent = played(Trace("a", (0,) * 4))
    assert spent == pytest.approx(5 + 4 * 11)
    assert [outcome.further for outcome in controller.outcomes] == [False, True, True, True]
    assert all(outcome.drafted == 0 for outcome in controller.outcomes)


def test_a_round_pays_draft_trip_and_step_and_moves_by_what_was_accepted_and_one() -> None:
    controller, spent = played(Trace("a", (2, 1, 0, 0, 0)), Plan(4))
    assert controller.views[1].remaining == 2
    first = controller.outcomes[0]
    assert (first.drafted, first.accepted, first.batch_tokens) == (4, 2, 5)
    assert first.draft_s == pytest.approx(0.008)
    assert first.elapsed_s == pytest.approx(0.005 + 0.015)
    assert first.step_s == pytest.approx(0.015)
    assert spent == pytest.approx(28 + 5 + 2 * 11)


def test_a_draft_leaves_room_for_the_token_of_the_target() -> None:
    controller, _ = played(Trace("a", (9, 9, 9)), Plan(16))
    assert controller.views[0] == RoundView(3, 2)
    assert controller.outcomes[0].drafted == 2


def test_a_round_whose_drafter_was_silent_still_pays_the_trip() -> None:
    controller, spent = played(Trace("a", (0, 0, 0), (0, 0, 0)), Plan(4))
    assert controller.outcomes[0].drafted == 0
    assert not controller.outcomes[0].further
    assert spent == pytest.approx(5 + 11 + 5 + 2 * 11)


def test_the_target_may_run_on_behind_a_draft() -> None:
    controller, _ = played(Trace("a", (1, 0, 0, 0, 0)), Plan(1, run=2))
    assert [outcome.further for outcome in controller.outcomes[:3]] == [False, True, True]


def test_a_shadow_draft_takes_the_targets_time_and_is_scored_when_its_tokens_are_there() -> None:
    controller, spent = played(Trace("a", (2, 1, 0, 0, 0, 0)), Plan(0, run=5, shadow=4))
    assert spent == pytest.approx(5 + 6 * 11 + 4 * 2)
    shadow = next(outcome for outcome in controller.outcomes if outcome.shadow)
    assert controller.outcomes.index(shadow) == 4
    assert (shadow.drafted, shadow.accepted) == (4, 2)


def test_a_shadow_draft_at_the_end_is_scored_as_far_as_the_output_goes() -> None:
    controller, _ = played(Trace("a", (2, 1)), Plan(0, run=1, shadow=4))
    assert controller.outcomes[-1] == RoundOutcome(2, 2, shadow=True, draft_s=0.008)


def test_one_shadow_draft_is_under_way_at_a_time() -> None:
    controller, _ = played(Trace("a", (0,) * 9), Plan(0, shadow=4), Plan(0, run=7, shadow=4))
    assert sum(outcome.shadow for outcome in controller.outcomes) == 1


@pytest.mark.parametrize(("held", "served"), [(9, True), (3, False)])
def test_a_draft_made_ahead_serves_if_all_held_and_the_bonus_was_guessed(held, served) -> None:
    world = World(rtt_ms=5.0, base_ms=10.0, token_ms=1.0, draft_ms=2.0, ahead=True, overlap=1.0)
    trace = Trace("a", (held,) * 12)
    controller, _ = played(trace, Plan(3, ahead=True), Plan(3), world=world)
    first, second = controller.outcomes[:2]
    assert first.ahead is None
    assert second.ahead is served
    assert second.draft_s == pytest.approx(0.0 if served else 0.006)


def test_drafting_ahead_on_shared_cores_slows_the_step() -> None:
    world = World(rtt_ms=0.0, base_ms=10.0, token_ms=1.0, draft_ms=2.0, ahead=True)
    controller, _ = played(Trace("a", (9,) * 12), Plan(3, ahead=True), world=world)
    assert controller.outcomes[0].step_s == pytest.approx(0.014 + 0.008)


def test_the_same_seed_gives_the_same_noise_and_keeps_the_mean() -> None:
    world = World(jitter=0.3)
    one, other = Clock(world, seed=1), Clock(world, seed=1)
    times = [one.noisy(1.0) for _ in range(4000)]
    assert times == [other.noisy(1.0) for _ in range(4000)]
    assert sum(times) / 4000 == pytest.approx(1.0, abs=0.03)


def test_a_load_swings_between_the_batch_and_a_sixteenth() -> None:
    world = World(batch=64, swing=True, period_ms=100)
    assert [world.batch_at(ms) for ms in (0, 99, 100, 250)] == [64, 64, 4, 64]
    assert World(batch=64).batch_at(150) == 64
    assert World(batch=4, swing=True).batch_at(20_001) == 1


def test_a_world_without_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="base_ms=0"):
        World(base_ms=0)


def test_a_world_is_named_by_what_sets_it_apart() -> None:
    assert World().name == "RTT 0.3 ms, batch 1"
    noisy = World(jitter=0.2, swing=True, ahead=True)
    assert noisy.name == "RTT 0.3 ms, batch 1, jitter 0.2, swings, ahead 0"


def test_the_clairvoyant_is_as_fast_as_the_best_of_all_plans() -> None:
    rng = random.Random(2)
    for rtt_ms in (0.0, 5.0):
        world = World(rtt_ms=rtt_ms, base_ms=10.0, token_ms=0.5, draft_ms=1.0)
        trace = Trace("a", tuple(rng.randint(0, 2) for _ in range(5)))
        least = min(
            played(trace, *plans, world=world)[1]
            for plans in itertools.product(
                [Plan(0), Plan(0, run=1), Plan(0, run=4), Plan(1), Plan(2)], repeat=4
            )
        )
        assert clairvoyant_ms(trace, world, batch=1, maximum=2) == pytest.approx(least)


def test_nobody_is_faster_than_the_clairvoyant() -> None:
    rng = random.Random(4)
    trace = Trace("a", tuple(rng.randint(0, 6) for _ in range(100)))
    least = clairvoyant_ms(trace, WORLD, batch=1, maximum=16)
    for controller in (FixedController(0), FixedController(3), WindowController()):
        clock = Clock(WORLD)
        play(trace, controller, WORLD, clock, maximum=16)
        assert clock.now_ms >= least
