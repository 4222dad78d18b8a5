"""Every law emits exactly the target's distribution, by enumeration; no mutant does."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.verify import Outcome, greedy_law, onehot_law, token_law
from tests.verify.oracle import (
    KINDS,
    Prefix,
    Probs,
    Rows,
    drafts,
    joint_error,
    joint_of_law,
    joint_of_target,
    random_rows,
)

V = 3
EXACT = 1e-12
CAUGHT = 1e-3


def sampled_from(rows: Rows, k: int):
    return lambda history: drafts(rows, V, k, history)


def fixed(k: int, seed: int):
    """A deterministic draft that depends on the history."""

    def source(history: Prefix):
        draw = np.random.default_rng([seed, len(history), *history])
        yield tuple(int(token) for token in draw.integers(V, size=k)), 1.0

    return source


def onehot(draft: Prefix, draft_rows: Probs, target_rows: Probs) -> list[Outcome]:
    return onehot_law(draft, target_rows)


def error_of(law, target: Rows, source, declared: Rows, length: int, rounds: int = 1) -> float:
    found = joint_of_law(law, target, source, declared, length, rounds)
    return joint_error(found, joint_of_target(target, V, length))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_token_law_emits_the_target_distribution(seed: int, k: int, kind: str) -> None:
    target, draft = random_rows(seed, V, kind)
    assert error_of(token_law, target, sampled_from(draft, k), draft, k + 1) < EXACT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_onehot_law_emits_the_target_distribution_for_sampled_drafts(
    seed: int, k: int, kind: str
) -> None:
    target, draft = random_rows(seed, V, kind)
    assert error_of(onehot, target, sampled_from(draft, k), draft, k + 1) < EXACT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_onehot_law_emits_the_target_distribution_for_any_fixed_draft(seed: int, kind: str) -> None:
    target, draft = random_rows(seed, V, kind)
    assert error_of(onehot, target, fixed(3, seed), draft, 4) < EXACT


@pytest.mark.parametrize("law", [token_law, onehot])
def test_two_rounds_compose_to_the_target_distribution(law) -> None:
    target, draft = random_rows(7, V, "dirichlet")
    assert error_of(law, target, sampled_from(draft, 2), draft, 5, rounds=2) < EXACT


def test_rows_over_more_tokens_and_longer_drafts_stay_exact() -> None:
    target, draft = random_rows(11, 4, "dirichlet")
    found = joint_of_law(token_law, target, lambda h: drafts(draft, 4, 4, h), draft, 5)
    assert joint_error(found, joint_of_target(target, 4, 5)) < EXACT


@pytest.mark.parametrize("kind", KINDS)
def test_outcome_probabilities_sum_to_one(kind: str) -> None:
    target, draft = random_rows(5, V, kind)
    for tokens, _ in drafts(draft, V, 2):
        rows = np.array([target(tokens[:i]) for i in range(3)])
        draft_rows = np.array([draft(tokens[:i]) for i in range(2)])
        for outcomes in (token_law(tokens, draft_rows, rows), onehot_law(tokens, rows)):
            assert sum(outcome.probability for outcome in outcomes) == pytest.approx(1, abs=EXACT)
            for outcome in outcomes:
                assert outcome.next_probs.sum() == pytest.approx(1, abs=EXACT)


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


@pytest.mark.parametrize("law", [token_law, lambda d, q, p: onehot_law(d, p)])
def test_a_law_refuses_rows_that_do_not_fit_the_draft(law) -> None:
    with pytest.raises(ValueError, match="target_probs has shape"):
        law((0, 1), np.full((2, V), 1 / V), np.full((2, V), 1 / V))


def test_token_law_refuses_draft_rows_of_another_vocabulary() -> None:
    with pytest.raises(ValueError, match="draft_probs has shape"):
        token_law((0,), np.full((1, V + 1), 1 / (V + 1)), np.full((2, V), 1 / V))


# Mutants: each is a mistake that real engines have shipped, and each must be visible to the oracle.


def test_dropping_a_draft_token_for_its_value_is_caught_in_ratio_mode() -> None:
    target, draft = random_rows(1, V, "dirichlet")

    def drop_unlikely(history: Prefix):
        for tokens, chance in drafts(draft, V, 1, history):
            likely = draft(history)[tokens[0]] >= 0.4
            yield (tokens if likely else ()), chance

    assert error_of(token_law, target, drop_unlikely, draft, 2) > CAUGHT
    assert error_of(onehot, target, drop_unlikely, draft, 2) < EXACT  # matching tolerates it


def test_stopping_behind_an_unlikely_token_is_exact_since_it_is_kept() -> None:
    target, draft = random_rows(1, V, "dirichlet")

    def stop_behind(history: Prefix):
        for tokens, chance in drafts(draft, V, 1, history):
            if draft(history)[tokens[0]] < 0.4:
                yield tokens, chance
                continue
            for more, further in drafts(draft, V, 1, history + tokens):
                yield tokens + more, chance * further

    assert error_of(token_law, target, stop_behind, draft, 3) < EXACT


def test_a_misdeclared_draft_distribution_is_caught_in_ratio_mode() -> None:
    target, draft = random_rows(2, V, "dirichlet")
    sharpened = lambda prefix: draft(prefix) ** 2 / (draft(prefix) ** 2).sum()  # noqa: E731 # a row by prefix
    assert error_of(token_law, target, sampled_from(sharpened, 2), draft, 3) > CAUGHT
    assert error_of(onehot, target, sampled_from(sharpened, 2), draft, 3) < EXACT


def test_taking_the_first_of_two_drafts_by_what_they_drew_is_caught_in_ratio_mode() -> None:
    target, draft = random_rows(4, V, "dirichlet")

    def hedge(history: Prefix):
        for one, chance in drafts(draft, V, 1, history):
            for two, other in drafts(draft, V, 1, history):
                yield min(one, two), chance * other  # the "faster" one depends on the token

    assert error_of(token_law, target, hedge, draft, 2) > CAUGHT
    assert error_of(onehot, target, hedge, draft, 2) < EXACT


def stale_history(law):
    """Judge every row with the history that held at the start of the round ."""

    def mutant(draft: Prefix, draft_rows: Probs, target_rows: Probs) -> list[Outcome]:
        return law(draft, draft_rows, np.repeat(target_rows[:1], len(draft) + 1, axis=0))

    return mutant


@pytest.mark.parametrize("law", [token_law, onehot])
def test_stale_history_is_caught(law) -> None:
    target, draft = random_rows(6, V, "dirichlet")
    assert error_of(stale_history(law), target, sampled_from(draft, 2), draft, 3) > CAUGHT


def no_residual(draft: Prefix, draft_rows: Probs, target_rows: Probs) -> list[Outcome]:
    """Emit from the target's own row after a rejection."""
    return [
        Outcome(outcome.probability, outcome.accepted_count, target_rows[outcome.accepted_count])
        for outcome in token_law(draft, draft_rows, target_rows)
    ]


def scalar_residual(draft: Prefix, draft_rows: Probs, target_rows: Probs) -> list[Outcome]:
    """Build the residual from the draft probability of the drafted token alone."""
    outcomes = []
    for outcome in token_law(draft, draft_rows, target_rows):
        if outcome.accepted_count == len(draft):
            outcomes.append(outcome)
            continue
        index = outcome.accepted_count
        row = target_rows[index].copy()
        row[draft[index]] = max(row[draft[index]] - draft_rows[index, draft[index]], 0.0)
        outcomes.append(Outcome(outcome.probability, index, row / row.sum()))
    return outcomes


def no_bonus(draft: Prefix, draft_rows: Probs, target_rows: Probs) -> list[Outcome]:
    """Emit the last row's token from the row before it."""
    return [
        outcome
        if outcome.accepted_count < len(draft)
        else Outcome(outcome.probability, len(draft), target_rows[-2])
        for outcome in token_law(draft, draft_rows, target_rows)
    ]


def swapped(draft: Prefix, draft_rows: Probs, target_rows: Probs) -> list[Outcome]:
    """Take the draft's rows for the target's."""
    return token_law(draft, target_rows[:-1], np.vstack([draft_rows, target_rows[-1:]]))


@pytest.mark.parametrize("mutant", [no_residual, scalar_residual, no_bonus, swapped])
def test_a_mutant_of_the_token_law_is_caught(mutant) -> None:
    target, draft = random_rows(8, V, "dirichlet")
    assert error_of(mutant, target, sampled_from(draft, 2), draft, 3) > CAUGHT


def keep_drafted_token(draft: Prefix, draft_rows: Probs, target_rows: Probs) -> list[Outcome]:
    """One-hot rejection that forgets to exclude the drafted token."""
    return [
        Outcome(outcome.probability, outcome.accepted_count, target_rows[outcome.accepted_count])
        for outcome in onehot_law(draft, target_rows)
    ]


def test_a_onehot_rejection_that_keeps_the_drafted_token_is_caught() -> None:
    target, draft = random_rows(9, V, "dirichlet")
    assert error_of(keep_drafted_token, target, sampled_from(draft, 2), draft, 3) > CAUGHT
