"""Every law emits exactly the target's distribution, by enumeration."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.verify import block_law, greedy_law, onehot_law, token_law
from tests.verify.oracle import (
    EXACT,
    KINDS,
    Prefix,
    drafts,
    error_of,
    onehot,
    random_rows,
    sampled,
    stack,
)

V = 3
LAWS = pytest.mark.parametrize("law", [onehot, token_law, block_law], ids=lambda law: law.__name__)


@LAWS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_a_law_emits_the_target_distribution(k: int, kind: str, law) -> None:
    for seed in range(4):
        target, draft = random_rows(seed, V, kind)
        assert error_of(law, target, sampled(draft, V, k), k + 1) < EXACT


@LAWS
@pytest.mark.parametrize("kind", ["zeros", "penalised", "warped"])
def test_rows_over_more_tokens_and_longer_drafts_stay_exact(kind: str, law) -> None:
    target, draft = random_rows(11, 4, kind)
    assert error_of(law, target, sampled(draft, 4, 4), 5) < EXACT


@LAWS
@pytest.mark.parametrize("kind", ["dirichlet", "zeros", "penalised", "warped"])
def test_two_rounds_compose_to_the_target_distribution(kind: str, law) -> None:
    target, draft = random_rows(7, V, kind)
    assert error_of(law, target, sampled(draft, V, 2), 6, rounds=2) < EXACT


@LAWS
@pytest.mark.parametrize("kind", ["dirichlet", "penalised"])
@pytest.mark.parametrize("plan", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_lookahead_that_depends_on_the_round_before_stays_exact(plan, kind: str, law) -> None:
    target, draft = random_rows(19, V, kind)

    def lookahead(accepted: int | None) -> int:
        return 2 if accepted is None else plan[accepted]

    assert error_of(law, target, sampled(draft, V, lookahead), 6, rounds=2) < EXACT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_onehot_law_emits_the_target_distribution_for_any_fixed_draft(seed: int, kind: str) -> None:
    target, draft = random_rows(seed, V, kind)

    def fixed(history: Prefix, accepted: int | None):
        draw = np.random.default_rng([seed, len(history), *history])
        yield tuple(int(token) for token in draw.integers(V, size=3)), 1.0, draft

    assert error_of(onehot, target, fixed, 4) < EXACT


@LAWS
@pytest.mark.parametrize("kind", KINDS)
def test_outcomes_are_a_distribution_over_distributions(kind: str, law) -> None:
    target, draft = random_rows(5, V, kind)
    for tokens, _ in drafts(draft, V, 2):
        outcomes = law(tokens, stack(draft, tokens, 2), stack(target, tokens, 3))
        assert sum(outcome.probability for outcome in outcomes) == pytest.approx(1, abs=EXACT)
        for outcome in outcomes:
            assert outcome.next_probs.sum() == pytest.approx(1, abs=EXACT)
            assert outcome.next_probs.min() >= 0.0


def test_token_law_accepts_one_token_with_one_minus_the_total_variation() -> None:
    target, draft = random_rows(3, V, "dirichlet")
    rows = np.array([target(()), target((0,))])
    accepted = sum(
        chance * outcome.probability
        for tokens, chance in drafts(draft, V, 1)
        for outcome in token_law(tokens, np.array([draft(())]), rows)
        if outcome.accepted_count == 1
    )
    assert accepted == pytest.approx(np.minimum(target(()), draft(())).sum(), abs=EXACT)


@pytest.mark.parametrize("law", [token_law, block_law])
def test_a_law_bears_draft_probabilities_near_the_smallest_number(law) -> None:
    draft_row = np.array([5e-324, 1.0, 0.0])
    target_row = np.array([0.5, 0.5, 0.0])
    (outcome,) = law((0,), draft_row[None], np.array([target_row, target_row]))
    assert (outcome.probability, outcome.accepted_count) == (1.0, 1)


def test_greedy_law_keeps_the_draft_while_it_is_the_argmax() -> None:
    scores = np.array([[0.0, 2.0, 1.0], [3.0, 1.0, 1.0], [0.0, 0.0, 5.0]])
    (outcome,) = greedy_law((1, 2), scores)
    assert (outcome.probability, outcome.accepted_count) == (1.0, 1)
    assert outcome.next_probs.tolist() == [1.0, 0.0, 0.0]


def test_greedy_law_adds_a_bonus_token_behind_a_whole_draft() -> None:
    scores = np.array([[0.0, 2.0, 1.0], [3.0, 1.0, 1.0], [0.0, 0.0, 5.0]])
    (outcome,) = greedy_law((1, 0), scores)
    assert outcome.accepted_count == 2
    assert outcome.next_probs.tolist() == [0.0, 0.0, 1.0]


def test_greedy_law_breaks_ties_by_the_lowest_id() -> None:
    (outcome,) = greedy_law((), np.array([[1.0, 4.0, 4.0]]))
    assert outcome.next_probs.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("law", [token_law, block_law, lambda d, q, p: onehot_law(d, p)])
def test_a_law_refuses_rows_that_do_not_fit_the_draft(law) -> None:
    with pytest.raises(ValueError, match="target_probs has shape"):
        law((0, 1), np.full((2, V), 1 / V), np.full((2, V), 1 / V))


@pytest.mark.parametrize("law", [token_law, block_law])
def test_a_ratio_law_refuses_draft_rows_of_another_vocabulary(law) -> None:
    with pytest.raises(ValueError, match="draft_probs has shape"):
        law((0,), np.full((1, V + 1), 1 / (V + 1)), np.full((2, V), 1 / V))
