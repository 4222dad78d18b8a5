"""The check of joint distributions finds mistakes that engines have shipped, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from outrider.verify import block_law, token_law
from tests.integration.fit import chi_square_tail, fit, g_statistics, pool
from tests.integration.joint import (
    LEAST_LIKELY,
    LENGTH,
    LOOKAHEAD,
    SAMPLES,
    SETTINGS,
    Joint,
    Prefix,
    Setting,
    drafted_for,
)
from tests.verify.mutants import own_row, replace_following
from tests.verify.oracle import drafts, joint_of_law, table_error


def counted_at_the_start_of_the_round(setting: Setting) -> Joint:
    """Nothing behind the first token counts for penalties and the like."""
    return setting.joint(counted=lambda prefix: prefix[:1])


def judged_by(law: Callable[..., Any], setting: Setting) -> Joint:
    """What rounds emit under this law, drafts and all."""

    def target(prefix: Prefix) -> np.ndarray:
        if set(prefix[-1:]) & set(setting.target.eos):  # what follows an end is of no account
            return np.eye(setting.target.vocab_size)[0]
        return setting.row(setting.target, prefix, prefix)

    def draft(prefix: Prefix) -> np.ndarray:
        return setting.row(setting.draft, prefix, prefix)

    def source(history: Prefix, accepted: int | None):
        k = min(LOOKAHEAD, LENGTH - 1 - len(history)) if history else 0
        for tokens, chance in drafts(draft, setting.draft.vocab_size, k, history):
            yield tokens, chance, draft

    found: dict[Prefix, float] = {}
    for output, chance in joint_of_law(law, target, source, LENGTH, rounds=LENGTH).items():
        ends = (i for i, token in enumerate(output) if token in setting.target.eos)
        cut = output[: next(ends, LENGTH) + 1]
        found[cut] = found.get(cut, 0.0) + chance
    return found


def recovered_from_the_targets_own_row(setting: Setting) -> Joint:
    """Drafted probability is not taken from the row behind a rejection."""
    return judged_by(replace_following(token_law, own_row), setting)


@pytest.mark.parametrize("name", SETTINGS)
def test_both_laws_composed_over_drafts_and_rounds_give_the_exact_joint(name) -> None:
    setting = SETTINGS[name]
    exact = setting.joint()
    assert math.isclose(sum(exact.values()), 1.0, rel_tol=1e-12)
    for law in (token_law, block_law):
        assert table_error(dict(judged_by(law, setting)), dict(exact)) < 1e-12


@pytest.mark.parametrize(
    "wrong", [counted_at_the_start_of_the_round, recovered_from_the_targets_own_row]
)
@pytest.mark.parametrize("name", SETTINGS)
def test_samples_of_a_wrong_joint_are_found_out_by_far(name, wrong) -> None:
    setting = SETTINGS[name]
    exact = setting.joint()
    possible = {outcome: p for outcome, p in wrong(setting).items() if outcome in exact}
    outcomes = list(possible)
    probs = np.array(list(possible.values()))
    for seed in range(20):
        counts = np.random.default_rng(seed).multinomial(SAMPLES, probs / probs.sum())
        sampled = dict(zip(outcomes, counts.tolist(), strict=True))
        assert fit(sampled, exact).p_value < LEAST_LIKELY**2
        assert fit(drafted_for(sampled), drafted_for(exact)).p_value < LEAST_LIKELY**2


@pytest.mark.parametrize("name", SETTINGS)
def test_honest_samples_have_even_p_values_and_the_expected_total_variation(name) -> None:
    exact = SETTINGS[name].joint()
    outcomes = list(exact)
    draws = np.random.default_rng(0).multinomial(SAMPLES, list(exact.values()), size=1000)
    fits = [fit(dict(zip(outcomes, row.tolist(), strict=True)), exact) for row in draws]
    p_values = np.sort([found.p_value for found in fits])
    assert np.abs(p_values - np.linspace(0, 1, 1000)).max() < 0.08
    floor = fits[0].tv_floor
    assert math.isclose(np.mean([found.tv for found in fits]), floor, rel_tol=0.02)
    assert max(found.tv for found in fits) < 1.7 * floor


@pytest.mark.parametrize(
    ("value", "df", "tail"),
    [(3.841459, 1, 0.05), (5.991465, 2, 0.05), (92.010024, 63, 0.01), (310.457388, 255, 0.01)],
)
def test_the_chi_square_tail_is_that_of_printed_tables(value, df, tail) -> None:
    assert math.isclose(chi_square_tail(value, df), tail, rel_tol=1e-5)


def test_an_impossible_outcome_is_counted_and_rare_ones_are_put_together() -> None:
    joint = {(0,): 0.5, (1,): 0.497, (2,): 0.002, (3,): 0.001, (4,): 0.0}
    found = fit({(0,): 500, (1,): 496, (2,): 2, (3,): 1, (4,): 1}, joint)
    assert (found.size, found.impossible, found.df) == (1000, 1, 2)
    observed, expected = np.array([500, 496, 2, 1]), 1000 * np.array([0.5, 0.497, 0.002, 0.001])
    together, wanted = pool(observed, expected)
    assert together.tolist() == [500, 496, 3]
    assert found.g == g_statistics(together[None], wanted)[0]
    assert math.isclose(found.tv, 0.001)
