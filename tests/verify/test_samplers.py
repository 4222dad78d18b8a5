"""The thin samplers follow their laws, checked by enumerating the intervals of their uniforms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from outrider.verify import coupling_acceptance, match, onehot_law, token_law, verify_tokens
from tests.verify.oracle import KINDS, Prefix, drafts, random_rows, stack

V = 3


def law_as_table(outcomes) -> dict[tuple[int, int], float]:
    """Probability by (accepted count, next token)."""
    table: dict[tuple[int, int], float] = {}
    for outcome in outcomes:
        for token in np.flatnonzero(outcome.next_probs):
            key = (outcome.accepted_count, int(token))
            weight = outcome.probability * float(outcome.next_probs[token])
            table[key] = table.get(key, 0.0) + weight
    return table


def sampler_as_table(draft: Prefix, draft_rows, target_rows) -> dict[tuple[int, int], float]:
    """The same, from the sampler: it is constant between the points where its comparisons flip."""
    k = len(draft)
    cuts: list[np.ndarray] = []
    for index, token in enumerate(draft):
        ratio = target_rows[index, token] / draft_rows[index, token]
        cuts.append(np.unique([0.0, min(1.0, ratio), 1.0]))
    residuals = [np.maximum(target_rows[i] - draft_rows[i], 0.0) for i in range(k)]
    rows = [row / row.sum() for row in residuals if row.sum() > 0] + list(target_rows)
    edges = np.concatenate([np.cumsum(row[row > 0]) for row in rows])
    cuts.append(np.unique(np.clip(np.concatenate([[0.0, 1.0], edges]), 0.0, 1.0)))
    table: dict[tuple[int, int], float] = {}
    for cell in itertools.product(*(itertools.pairwise(points) for points in cuts)):
        middle = np.array([(low + high) / 2 for low, high in cell])
        key = verify_tokens(draft, draft_rows, target_rows, middle)
        volume = float(np.prod([high - low for low, high in cell]))
        table[key] = table.get(key, 0.0) + volume
    return table


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [0, 1, 2])
def test_verify_tokens_follows_the_token_law(k: int, kind: str) -> None:
    target, draft = random_rows(13, V, kind)
    for tokens, _ in drafts(draft, V, k):
        target_rows = stack(target, tokens, k + 1)
        draft_rows = stack(draft, tokens, k)
        expected = law_as_table(token_law(tokens, draft_rows, target_rows))
        found = sampler_as_table(tokens, draft_rows, target_rows)
        for key in expected | found:
            assert found.get(key, 0.0) == pytest.approx(expected.get(key, 0.0), abs=1e-12)


def test_verify_tokens_never_emits_a_token_of_probability_zero() -> None:
    rows = np.array([[0.1] * 10 + [0.0]])
    assert verify_tokens((), np.empty((0, 11)), rows, np.array([np.nextafter(1.0, 0.0)])) == (0, 9)


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
        expected = law_as_table(onehot_law(tokens, rows))
        for key in expected | found:
            assert found.get(key, 0.0) == pytest.approx(expected.get(key, 0.0), abs=1e-12)


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
