"""The screened race has the same winner as scoring every token."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.sampling import Support, gumbel, warp
from outrider.sampling.race import winner
from outrider.types import SamplingParams

V = 20_011  # no multiple of a block


def by_scoring_all(support: Support, key: int, choice: int, position: int) -> int:
    scores = support.log_weights() + gumbel(key, choice, position, support.ids)
    return int(support.ids[np.argmax(scores)])


def rows() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    peaked = draw.standard_normal(V)
    peaked[draw.integers(V, size=20)] += draw.exponential(6.0, size=20) + 5.0
    masked = draw.standard_normal(V)
    masked[draw.random(V) < 0.99] = -np.inf
    last = np.full(V, -50.0)
    last[-1] = 0.0
    return {
        "flat": np.zeros(V),
        "gaussian": draw.standard_normal(V),
        "wide": 40 * draw.standard_normal(V),
        "peaked": peaked,
        "masked": masked,
        "last": last,
    }


ROWS = rows()
PARAMS = {
    "plain": SamplingParams(),
    "hot": SamplingParams(temperature=50.0),
    "cold": SamplingParams(temperature=0.05),
    "coldest": SamplingParams(temperature=1e-300),
    "nucleus": SamplingParams(top_p=0.999),
    "top-k": SamplingParams(top_k=9000),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("row", ROWS)
def test_the_winner_is_that_of_scoring_every_token(row, params, dtype) -> None:
    support = warp(ROWS[row].astype(dtype), PARAMS[params])
    for position in range(25):
        found = winner(support, 7, 1, position)
        assert found == by_scoring_all(support, 7, 1, position)
        assert np.isfinite(ROWS[row][found])


def test_a_likely_token_with_the_least_noise_is_not_lost() -> None:
    """A block far ahead of the bound lets every hash pass, the smallest included."""
    logits = np.full(V, -1e6)
    logits[5] = 0.0
    support = warp(logits, SamplingParams())
    assert {winner(support, key, 0, 0) for key in range(300)} == {5}


def test_over_many_places_a_large_row_is_sampled_as_often_as_its_probabilities_say() -> None:
    logits = np.full(V, -30.0)
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    ids = np.array([0, 4097, 12_000, V - 1])
    logits[ids] = np.log(probs)
    support = warp(logits, SamplingParams())
    trials = 4000
    counts = {int(token): 0 for token in ids}
    for position in range(trials):
        counts[winner(support, 11, 0, position)] += 1
    observed = np.array([counts[int(token)] for token in ids])
    statistic = float(((observed - trials * probs) ** 2 / (trials * probs)).sum())
    assert statistic < 21.1  # chi-square, 3 degrees of freedom, 99.99%
