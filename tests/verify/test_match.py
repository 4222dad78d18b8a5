"""The matching sampler follows the one-hot law; coupling agrees as often as it is said to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from outrider.verify import coupling_acceptance, match, onehot_law
from tests.verify.oracle import EXACT, KINDS, law_as_table, random_rows, stack, table_error

V = 3


@pytest.mark.parametrize("kind", KINDS)
def test_matching_independent_samples_follows_the_onehot_law(kind: str) -> None:
    target, _ = random_rows(17, V, kind)
    for tokens in itertools.product(range(V), repeat=2):
        rows = stack(target, tokens, 3)
        found: dict[tuple[int, int], float] = {}
        for samples in itertools.product(range(V), repeat=3):
            weight = float(np.prod([rows[i, token] for i, token in enumerate(samples)]))
            key = match(tokens, samples.__getitem__)
            found[key] = found.get(key, 0.0) + weight
        assert table_error(found, law_as_table(onehot_law(tokens, rows))) < EXACT


def test_matching_asks_for_no_sample_beyond_the_first_disagreement() -> None:
    asked: list[int] = []

    def sample(index: int) -> int:
        asked.append(index)
        return [5, 6, 7, 8][index]

    assert match((5, 0, 7), sample) == (1, 6)
    assert asked == [0, 1]


def test_coupling_acceptance_is_certain_for_equal_rows_and_impossible_for_disjoint_ones() -> None:
    row = np.array([0.2, 0.5, 0.3])
    assert coupling_acceptance(row, row) == pytest.approx(1.0)
    assert coupling_acceptance(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_coupling_acceptance_lies_between_its_known_bounds(seed: int) -> None:
    target, draft = random_rows(seed, 6, "dirichlet")
    variation = 0.5 * np.abs(target(()) - draft(())).sum()
    found = coupling_acceptance(draft(()), target(()))
    assert (1 - variation) / (1 + variation) <= found <= 1 - variation
