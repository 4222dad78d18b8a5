from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from outrider.control import Decision, Fleet, GoodputController, Plan, RoundOutcome, RoundView
from outrider.replay import Clock, Trace, World, concatenate, play

ROOMY = RoundView(remaining=1000, max_draft_tokens=16)
DEAR = World(rtt_ms=0.0, draft_ms=8.0)


def text(rate: float, tokens: int = 300, seed: int = 0) -> Trace:
    """An output of which every drafted token is right with this probability."""
    rng = random.Random(seed)
    held: list[int] = []
    while len(held) < tokens:
        held.append(_run(rng, rate))
    return Trace(str(seed), tuple(held))


def _run(rng: random.Random, rate: float) -> int:
    length = 0
    while rng.random() < rate and length < 20:
        length += 1
    return length


class Watched:
    """A controller whose decisions are counted."""

    def __init__(self, controller: GoodputController) -> None:
        self.controller = controller
        self.kinds: Counter[str] = Counter()
        self.plans: list[Plan] = []
        self.outcomes: list[RoundOutcome] = []

    def choose(self, view: RoundView) -> Plan:
        self.plans.append(self.controller.choose(view))
        self.kinds[self.controller.explain().kind] += 1
        return self.plans[-1]

    def observe(self, outcome: RoundOutcome) -> None:
        self.outcomes.append(outcome)
        self.controller.observe(outcome)


def session(fleet: Fleet, trace: Trace, world: World, clock: Clock | None = None) -> Watched:
    watched = Watched(GoodputController(fleet))
    play(trace, watched, world, clock or Clock(world), maximum=16)
    return watched


def test_while_nothing_is_known_the_initial_lookahead_is_drafted() -> None:
    controller = GoodputController(Fleet(), initial=5)
    assert controller.choose(ROOMY) == Plan(5)
    assert controller.explain() == Decision(5, "first")
    assert controller.choose(RoundView(remaining=4, max_draft_tokens=3)) == Plan(3)


def test_an_initial_lookahead_of_zero_leaves_the_first_choice_to_what_is_likely() -> None:
    assert GoodputController(Fleet(), initial=0).choose(ROOMY).lookahead > 0


def test_without_room_the_target_runs_to_the_end() -> None:
    controller = GoodputController(Fleet())
    assert controller.choose(RoundView(9, 0)) == Plan(0, run=8)
    assert GoodputController(Fleet(), maximum=0).choose(ROOMY) == Plan(0, run=999)
    assert controller.explain() == Decision(0, "plain")


def test_good_drafts_are_made_longer_and_bad_ones_not_made() -> None:
    world = World(rtt_ms=0.3)
    long = session(Fleet(), text(0.97), world)
    short = session(Fleet(), text(0.5), world)
    none = session(Fleet(), text(0.05), world)
    assert long.plans[-10].lookahead >= 6
    assert short.plans[-10].lookahead in {1, 2}
    assert none.plans[-1].lookahead == 0


def test_a_fresh_session_of_a_drafter_that_never_pays_begins_plainly() -> None:
    fleet = Fleet()
    for seed in range(5):
        session(fleet, text(0.1, seed=seed), DEAR)
    fresh = session(fleet, text(0.1, seed=9), DEAR)
    assert fresh.plans[0].lookahead == 0
    assert sum(plan.lookahead > 0 for plan in fresh.plans) <= 1


def test_a_trip_makes_the_same_drafts_not_worth_their_while() -> None:
    near, far = (session(Fleet(), text(0.7), World(rtt_ms=rtt)) for rtt in (0.3, 30.0))
    assert near.plans[-10].lookahead > 0
    assert far.plans[-1].lookahead == 0


def test_finding_out_costs_about_a_hundredth_over_all_sessions() -> None:
    for world in (DEAR, World(rtt_ms=30.0)):
        fleet, clock = Fleet(), Clock(world)
        for seed in range(12):
            session(fleet, text(0.3, seed=seed), world, clock)
        alone = 12 * (300 * world.step_ms(1, 0) + world.rtt_ms)
        assert alone < clock.now_ms < 1.015 * alone


def test_shadow_drafts_find_out_that_a_text_became_easy() -> None:
    world = World(rtt_ms=0.0, draft_ms=0.3)
    watched = session(Fleet(), concatenate([text(0.0, 400), text(0.95, 800)]), world)
    assert any(plan.lookahead == 0 and plan.shadow for plan in watched.plans)
    assert watched.plans[-20].lookahead >= 4


def test_a_text_that_became_hard_is_decoded_plainly() -> None:
    watched = session(Fleet(), concatenate([text(0.95, 400), text(0.0, 400)]), DEAR)
    assert watched.plans[0].lookahead > 0
    assert watched.plans[-1].lookahead == 0


def test_runs_alone_grow_while_shadow_drafts_fail() -> None:
    fleet = Fleet()
    watched = session(fleet, text(0.0, 600), World(rtt_ms=0.0, draft_ms=0.01, token_ms=1.0))
    runs = [plan.run + 1 for plan in watched.plans if plan.shadow]
    assert runs[0] < runs[-2] == 64


def test_runs_alone_are_long_where_interrupting_one_costs_a_trip() -> None:
    watched = session(Fleet(), text(0.0, 4000), World(rtt_ms=30.0))
    runs = [plan.run + 1 for plan in watched.plans if plan.shadow]
    assert runs[-2] > 400


def test_a_shadow_draft_that_the_rest_of_the_output_cannot_pay_is_not_made() -> None:
    fleet = Fleet()
    session(fleet, text(0.0, 300), DEAR)
    fleet.spend(fleet.allowance_s)
    assert GoodputController(fleet).choose(RoundView(20, 16)) == Plan(0, run=19)


def test_a_silent_drafter_is_no_longer_asked() -> None:
    silent = replace(text(0.0), drafted=(0,) * 300)
    watched = session(Fleet(), silent, World(rtt_ms=5.0, draft_ms=0.0))
    assert watched.plans[-1].lookahead == 0
    assert sum(plan.lookahead > 0 for plan in watched.plans) < 20


def test_a_shadow_draft_without_a_token_says_that_the_drafter_is_silent() -> None:
    fleet = Fleet()
    controller = GoodputController(fleet)
    controller.observe(RoundOutcome(0, 0, shadow=True))
    assert fleet.acceptance.says < 0.8


def test_the_lookahead_survives_a_round_that_had_no_room_for_it() -> None:
    fleet = Fleet()
    watched = session(fleet, text(0.97), World())
    controller = watched.controller
    before = controller.choose(ROOMY).lookahead
    assert controller.choose(RoundView(3, 2)).lookahead == 2
    assert controller.choose(ROOMY).lookahead == before


def test_small_differences_do_not_change_the_lookahead() -> None:
    watched = session(Fleet(), text(0.8, 700), World())
    lookaheads = [plan.lookahead for plan in watched.plans[100:-10]]
    changes = sum(one != other for one, other in pairwise(lookaheads))
    assert changes < 0.2 * len(lookaheads)


def test_a_crowded_step_has_slots_only_for_tokens_that_survive() -> None:
    world = World(rtt_ms=0.0, draft_ms=0.0, token_ms=0.1, batch=64)
    crowded = session(Fleet(), text(0.8), world)
    lone = session(Fleet(), text(0.8), replace(world, batch=1))
    assert crowded.plans[-10].lookahead < lone.plans[-10].lookahead


def test_slots_go_to_the_session_that_gains_most_by_them() -> None:
    fleet = Fleet()
    good, bad = GoodputController(fleet), GoodputController(fleet)
    for _ in range(60):
        for controller, accepted in ((good, 4), (bad, 0)):
            plan = controller.choose(ROOMY)
            drafted = min(plan.lookahead, 16)
            tokens = 8 * (drafted + 1)
            step = 0.004 + 0.0005 * tokens
            controller.observe(
                RoundOutcome(
                    drafted,
                    min(accepted, drafted),
                    elapsed_s=step,
                    step_s=step,
                    batch_size=8,
                    batch_tokens=tokens,
                )
            )
    assert good.choose(ROOMY).lookahead > bad.choose(ROOMY).lookahead == 0


def test_a_decision_can_be_explained() -> None:
    watched = session(Fleet(), text(0.8), World(batch=4))
    decision = watched.controller.explain()
    watched.controller.choose(ROOMY)
    decision = watched.controller.explain()
    assert decision.kind == "draft"
    assert decision.goodput[decision.lookahead] > decision.goodput[0] > 0
    assert decision.survival[0] > decision.survival[1]
    assert decision.price > 0


def test_the_next_draft_is_made_ahead_where_that_hides_it() -> None:
    hidden = World(rtt_ms=10.0, draft_ms=2.0, ahead=True, overlap=1.0)
    watched = session(Fleet(), text(0.95, 1000), hidden)
    late = watched.plans[50:-10]
    assert sum(plan.ahead for plan in late) > 0.8 * len(late)
    assert any(outcome.ahead for outcome in watched.outcomes)


def test_drafting_ahead_is_given_up_where_it_slows_the_target() -> None:
    shared = World(rtt_ms=0.0, base_ms=20.0, draft_ms=3.0, ahead=True, overlap=0.0)
    watched = session(Fleet(), text(0.8, 800), shared)
    late = watched.plans[100:]
    assert sum(plan.ahead for plan in late) < 0.2 * len(late)


def test_a_choice_depends_on_the_past_alone() -> None:
    one = text(0.8, 400)
    other = replace(one, accepted=one.accepted[:200] + (0,) * 200)
    plans = [session(Fleet(), trace, World()).plans for trace in (one, other)]
    same = 0
    while plans[0][same] == plans[1][same]:
        same += 1
    rounds = session(Fleet(), one, World()).outcomes
    reached = sum(1 + outcome.accepted for outcome in rounds[:same] if not outcome.shadow)
    assert reached >= 200


@pytest.mark.parametrize(("rtt_ms", "batch"), [(0.3, 1), (10.0, 256)])
def test_noise_on_every_time_leaves_the_choice_as_it_was(rtt_ms, batch) -> None:
    speeds = []
    for jitter in (0.0, 0.4):
        world = World(rtt_ms=rtt_ms, batch=batch, jitter=jitter)
        clock, fleet = Clock(world, seed=5), Fleet()
        for seed in range(4):
            session(fleet, text(0.75, seed=seed), world, clock)
        speeds.append(1200 / clock.now_ms)
    assert speeds[1] > 0.93 * speeds[0]


def test_a_trial_waits_until_the_allowance_suffices() -> None:
    fleet, world = Fleet(), World(rtt_ms=0.0, draft_ms=3.3)
    for seed in range(4):
        session(fleet, text(0.4, seed=seed), world)
    fleet.spend(fleet.allowance_s + 1.0)
    fresh = GoodputController(fleet)
    assert fresh.choose(ROOMY).lookahead == 0
    fleet.earn(1e6)
    assert fresh.choose(ROOMY).lookahead > 0
    assert fresh.explain().kind == "trial"
