"""From rounds and times to speed-ups, intervals and verdicts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider.train.forecast import Verdict, forecast
from tests.train.scenes import LOOKAHEAD, costs, tally

CHANCES = np.random.default_rng(0).uniform(0.4, 0.9, 60).tolist()


def test_the_speed_up_is_tokens_per_round_over_what_a_round_costs_in_plain_steps() -> None:
    (found,) = forecast([tally("a", CHANCES)], costs(["a"], token_s=0.002))
    for k in range(LOOKAHEAD + 1):
        step, share = (0.010 + 0.001 * k) / 0.010, 0.002 / 0.010
        expected = found.tokens_per_round[k].value / (step + k * share)
        assert found.speedup[k].value == pytest.approx(expected)
    assert found.speedup[0].value == 1.0
    assert found.best == max(range(1, 5), key=lambda k: found.speedup[k].value)


def test_rounds_without_a_draft_cost_a_plain_step() -> None:
    one = tally("a", [0.0] * 3)
    # Nothing is ever found to draft.
    moved = np.zeros_like(one.by_length)
    moved[:, :, 0] = one.by_length.sum(axis=2)
    (found,) = forecast([replace(one, by_length=moved)], costs(["a"], token_s=0.002))
    assert [each.value for each in found.speedup] == pytest.approx([1.0] * 5)


def test_asking_costs_once_a_round_whatever_comes() -> None:
    measured = costs(["a"], token_s=0.0)
    measured = replace(measured, round_s={"a": np.full(5, 0.010)})
    (found,) = forecast([tally("a", [0.0] * 3)], measured)
    steps = [0.010 + 0.001 * k for k in range(5)]
    expected = [1.0, *(0.010 / (step + 0.010) for step in steps[1:])]
    assert [each.value for each in found.speedup] == pytest.approx(expected)


def test_the_interval_is_that_of_the_mean_over_prompts() -> None:
    (found,) = forecast([tally("a", CHANCES)], costs(["a"], token_s=0.0))
    rounds = tally("a", CHANCES).rounds[:, 2]
    per_round = 40 * len(rounds) / rounds.sum()
    error = rounds.std() / len(rounds) ** 0.5 / rounds.mean() * per_round
    interval = found.tokens_per_round[2]
    assert interval.value == pytest.approx(per_round)
    assert interval.low == pytest.approx(per_round - 1.96 * error, rel=0.02)
    assert interval.high == pytest.approx(per_round + 1.96 * error, rel=0.02)


def test_the_interval_of_a_speed_up_covers_the_spread_of_measured_times() -> None:
    steady = costs(["a"], token_s=0.002, repeats=9)
    shaky = replace(
        steady, target_s=steady.target_s * np.random.default_rng(0).uniform(0.5, 1.5, (9, 1))
    )
    shaky = replace(shaky, token_s={"a": np.random.default_rng(1).uniform(0.001, 0.003, 9)})
    same = tally("a", [0.7] * 20)
    (calm,), (nervous,) = forecast([same], steady), forecast([same], shaky)
    assert calm.speedup[2].high - calm.speedup[2].low < 1e-9
    assert nervous.speedup[2].high - nervous.speedup[2].low > 0.05


def test_drafts_are_compared_prompt_by_prompt() -> None:
    better = [chance + 0.02 for chance in CHANCES]
    one, other = forecast(
        [tally("a", CHANCES), tally("b", better)], costs(["a", "b"], token_s=0.001)
    )
    apart = one.speedup[one.best], other.speedup[other.best]
    assert apart[0].high > apart[1].low  # unpaired, nothing is certain
    assert other.against_first is not None
    assert 1.0 < other.against_first.low < other.against_first.value < other.against_first.high
    assert one.against_first is None


@pytest.mark.parametrize(
    ("chances", "token_s", "verdict"),
    [
        ([0.6] * 30, 0.001, Verdict.PAYS),
        ([0.6] * 30, 0.012, Verdict.NEVER),
        ([0.05, 0.7] * 8, 0.0033, Verdict.UNCLEAR),
    ],
)
def test_the_verdict_follows_the_interval(chances, token_s, verdict) -> None:
    (found,) = forecast([tally("a", chances)], costs(["a"], token_s=token_s))
    assert found.verdict is verdict
    assert (found.speedup[found.best].low > 1) == (verdict is Verdict.PAYS)
    assert all(each.high <= 1 for each in found.speedup[1:]) == (verdict is Verdict.NEVER)


def test_acceptance_is_told_by_place_and_in_all() -> None:
    (found,) = forecast([tally("a", [0.6] * 4)], costs(["a"], token_s=0.0))
    assert found.acceptance == pytest.approx(0.6)
    assert found.by_place[3] == pytest.approx([0.6] * 3)
    assert len(found.by_place[0]) == 0
    assert found.independent[2] == pytest.approx(1 + 0.6 + 0.36)
    rounds = tally("a", [0.6] * 4).rounds[:, 3].sum()
    assert found.reached[3][0] == pytest.approx(rounds)
    assert found.reached[3][1] == pytest.approx(rounds * 0.6, rel=0.05)


def test_a_prompt_without_tokens_leaves_intervals_as_they_are() -> None:
    one = tally("a", [0.5, 0.5])
    empty = replace(
        one, tokens=np.array([40.0, 0.0]), by_length=one.by_length * np.array([1, 0])[:, None, None]
    )
    (found,) = forecast([empty], costs(["a"], token_s=0.0))
    interval = found.tokens_per_round[2]
    assert interval.low == interval.high == pytest.approx(interval.value)
