"""What sets block verification apart: its invariant, and that it never accepts less."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.verify import block_law, token_law
from tests.verify.mutants import plain_block, reaches_and_passes
from tests.verify.oracle import (
    EXACT,
    KINDS,
    drafts,
    expected_accepted,
    onehot,
    random_rows,
    stack,
)

V = 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_at_least_i_tokens_are_accepted_with_the_probability_reached_at_i(
    seed: int, kind: str
) -> None:
    k = 3
    target, draft = random_rows(seed, V, kind)
    for i in range(1, k + 1):
        for first, _ in drafts(draft, V, i):
            draft_rows, target_rows = stack(draft, first, i), stack(target, first, i + 1)
            reached = reaches_and_passes(first, draft_rows, target_rows)[0][i]
            accepted = sum(
                chance * outcome.probability
                for more, chance in drafts(draft, V, k - i, first)
                for outcome in block_law(
                    first + more, stack(draft, first + more, k), stack(target, first + more, k + 1)
                )
                if outcome.accepted_count >= i
            )
            assert accepted == pytest.approx(reached, abs=EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_block_verification_accepts_at_least_as_much_as_the_token_rule(kind: str) -> None:
    for seed in range(8):
        target, draft = random_rows(seed, V, kind)
        for k in (2, 3):
            block = expected_accepted(block_law, target, draft, k)
            assert block >= expected_accepted(token_law, target, draft, k) - EXACT


def test_block_verification_accepts_more_where_a_likely_token_follows_an_unlikely_one() -> None:
    target, draft = random_rows(0, V, "dirichlet")
    gain = expected_accepted(block_law, target, draft, 3) - expected_accepted(
        token_law, target, draft, 3
    )
    assert gain > 0.01


def table(outcomes) -> np.ndarray:
    """Probability by accepted count and next token."""
    found = np.zeros((4, V))
    for outcome in outcomes:
        found[outcome.accepted_count] += outcome.probability * outcome.next_probs
    return found


@pytest.mark.parametrize("seed", range(5))
def test_all_rules_agree_on_onehot_drafts(seed: int) -> None:
    target, _ = random_rows(seed, V, "dirichlet")
    tokens = tuple(int(token) for token in np.random.default_rng(seed).integers(V, size=3))
    draft_rows, target_rows = np.eye(V)[list(tokens)], stack(target, tokens, 4)
    expected = table(onehot(tokens, draft_rows, target_rows))
    np.testing.assert_allclose(
        table(token_law(tokens, draft_rows, target_rows)), expected, 0, EXACT
    )
    np.testing.assert_allclose(
        table(block_law(tokens, draft_rows, target_rows)), expected, 0, EXACT
    )


@pytest.mark.parametrize("seed", range(5))
def test_block_and_token_rule_agree_on_one_token(seed: int) -> None:
    target, draft = random_rows(seed, V, "zeros")
    for tokens, _ in drafts(draft, V, 1):
        rows = stack(draft, tokens, 1), stack(target, tokens, 2)
        expected = table(token_law(tokens, *rows))
        np.testing.assert_allclose(table(block_law(tokens, *rows)), expected, 0, EXACT)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nearly equal"])
@pytest.mark.parametrize("seed", range(3))
def test_block_law_agrees_with_the_rule_written_down_another_way(seed: int, kind: str) -> None:
    target, draft = random_rows(seed, V, kind)
    for tokens, _ in drafts(draft, V, 3):
        rows = stack(draft, tokens, 3), stack(target, tokens, 4)
        expected = table(plain_block(tokens, *rows))
        np.testing.assert_allclose(table(block_law(tokens, *rows)), expected, 0, EXACT)


def test_equal_rows_accept_the_whole_draft() -> None:
    target, _ = random_rows(2, V, "dirichlet")
    rows = stack(target, (0, 1, 2), 4)
    (outcome,) = block_law((0, 1, 2), rows[:3], rows)
    assert (outcome.probability, outcome.accepted_count) == (1.0, 3)


def test_rows_behind_a_token_that_the_target_never_emits_are_not_looked_at() -> None:
    target_rows = np.array([[0.0, 0.25, 0.75], [np.nan] * 3, [np.nan] * 3])
    draft_rows = np.array([[0.5, 0.5, 0.0], [np.nan] * 3])
    (outcome,) = block_law((0, 1), draft_rows, target_rows)
    assert (outcome.probability, outcome.accepted_count) == (1.0, 0)
    assert outcome.next_probs.tolist() == [0.0, 0.0, 1.0]
