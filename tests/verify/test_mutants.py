"""Mistakes that engines have shipped are visible to the oracle; matching is immune to some."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.verify import block_law, onehot_law, token_law
from tests.verify import mutants
from tests.verify.oracle import (
    CAUGHT,
    EXACT,
    Prefix,
    drafts,
    error_of,
    onehot,
    random_rows,
    sampled,
)
from tests.verify.processing import penalised_rows

V = 3
named = {"ids": lambda law: law.__name__}
RATIO_LAWS = pytest.mark.parametrize("law", [token_law, block_law], **named)
EVERY_LAW = pytest.mark.parametrize("law", [onehot, token_law, block_law], **named)


def error_on_sampled_drafts(mutant, k: int) -> float:
    """The worst of a few models: a mistake need not show in each."""
    errors = []
    for seed in range(8):
        target, draft = random_rows(seed, V, "dirichlet")
        errors.append(error_of(mutant, target, sampled(draft, V, k), k + 1))
    return max(errors)


def test_the_plain_block_rule_that_mutants_are_made_from_is_exact() -> None:
    assert error_on_sampled_drafts(mutants.plain_block, 3) < EXACT


def test_block_verification_that_stops_at_the_first_failure_is_caught() -> None:
    assert error_on_sampled_drafts(mutants.early_stop, 2) > CAUGHT


def test_an_uncapped_ratio_for_the_whole_draft_is_caught() -> None:
    assert error_on_sampled_drafts(mutants.uncapped, 2) > CAUGHT


def test_block_verification_that_freezes_its_product_at_the_first_failure_is_caught() -> None:
    assert error_on_sampled_drafts(mutants.frozen_at_failure, 3) > CAUGHT


def test_one_uniform_for_all_lengths_of_a_block_is_caught() -> None:
    assert error_on_sampled_drafts(mutants.one_uniform, 2) > CAUGHT


def test_block_verification_with_the_residual_of_the_token_rule_is_caught() -> None:
    assert error_on_sampled_drafts(mutants.token_residual, 2) > CAUGHT


@RATIO_LAWS
def test_the_targets_own_row_behind_a_rejection_is_caught(law) -> None:
    assert error_on_sampled_drafts(mutants.replace_following(law, mutants.own_row), 2) > CAUGHT


@RATIO_LAWS
def test_a_residual_built_from_a_scalar_draft_probability_is_caught(law) -> None:
    mutant = mutants.replace_following(law, mutants.scalar_residual)
    assert error_on_sampled_drafts(mutant, 2) > CAUGHT


@EVERY_LAW
def test_a_bonus_token_without_a_row_of_its_own_is_caught(law) -> None:
    assert error_on_sampled_drafts(mutants.replace_following(law, mutants.no_bonus), 2) > CAUGHT


def test_taking_the_drafts_rows_for_the_targets_is_caught() -> None:
    assert error_on_sampled_drafts(mutants.swapped, 2) > CAUGHT


def test_a_onehot_rejection_that_keeps_the_drafted_token_is_caught() -> None:
    assert error_on_sampled_drafts(mutants.replace_following(onehot, mutants.own_row), 2) > CAUGHT


@RATIO_LAWS
def test_a_misdeclared_draft_distribution_is_caught_in_ratio_mode(law) -> None:
    target, draft = random_rows(2, V, "dirichlet")

    def sharpened(prefix: Prefix):
        return draft(prefix) ** 2 / (draft(prefix) ** 2).sum()

    source = sampled(sharpened, V, 2, declared=draft)
    assert error_of(law, target, source, 3) > CAUGHT
    assert error_of(onehot, target, source, 3) < EXACT


@RATIO_LAWS
def test_dropping_a_drafted_token_of_low_confidence_is_caught_in_ratio_mode(law) -> None:
    target, draft = random_rows(1, V, "dirichlet")

    def drop_unlikely(history: Prefix, accepted: int | None):
        for (first, second), chance in drafts(draft, V, 2, history):
            likely = draft((*history, first))[second] >= 0.4
            yield (first, second) if likely else (first,), chance, draft

    assert error_of(law, target, drop_unlikely, 3) > CAUGHT
    assert error_of(onehot, target, drop_unlikely, 3) < EXACT


@EVERY_LAW
def test_stopping_behind_a_token_of_low_confidence_is_exact_since_it_is_kept(law) -> None:
    target, draft = random_rows(1, V, "dirichlet")

    def stop_behind(history: Prefix, accepted: int | None):
        for tokens, chance in drafts(draft, V, 1, history):
            if draft(history)[tokens[0]] < 0.4:
                yield tokens, chance, draft
                continue
            for more, further in drafts(draft, V, 1, history + tokens):
                yield tokens + more, chance * further, draft

    assert error_of(law, target, stop_behind, 3) < EXACT


@RATIO_LAWS
def test_discarding_a_late_draft_is_caught_in_ratio_mode(law) -> None:
    target, draft = random_rows(0, V, "dirichlet")

    def deadline(history: Prefix, accepted: int | None):
        for tokens, chance in drafts(draft, V, 2, history):
            late = tokens[0] == 0  # to draft behind this token takes longer
            yield () if late else tokens, chance, draft

    assert error_of(law, target, deadline, 3) > CAUGHT
    assert error_of(onehot, target, deadline, 3) < EXACT


@RATIO_LAWS
def test_taking_the_first_of_two_drafts_is_caught_in_ratio_mode(law) -> None:
    target, draft = random_rows(4, V, "dirichlet")

    def hedge(history: Prefix, accepted: int | None):
        for one, chance in drafts(draft, V, 2, history):
            for two, other in drafts(draft, V, 2, history):
                # How soon a replica answers depends on the tokens that it drew.
                yield min(one, two), chance * other, draft

    assert error_of(law, target, hedge, 3) > CAUGHT
    assert error_of(onehot, target, hedge, 3) < EXACT


@RATIO_LAWS
def test_choosing_between_two_drafters_by_what_they_drew_is_caught_in_ratio_mode(law) -> None:
    target, first = random_rows(4, V, "dirichlet")
    _, second = random_rows(5, V, "dirichlet")

    def surer(history: Prefix, accepted: int | None):
        for one, chance in drafts(first, V, 1, history):
            for two, other in drafts(second, V, 1, history):
                if first(history)[one[0]] >= second(history)[two[0]]:
                    yield one, chance * other, first
                else:
                    yield two, chance * other, second

    assert error_of(law, target, surer, 2) > CAUGHT
    assert error_of(onehot, target, surer, 2) < EXACT


@EVERY_LAW
def test_choosing_between_two_drafters_before_they_draw_is_exact(law) -> None:
    target, first = random_rows(4, V, "dirichlet")
    _, second = random_rows(5, V, "dirichlet")

    def coin(history: Prefix, accepted: int | None):
        for rows, weight in ((first, 0.3), (second, 0.7)):
            for tokens, chance in drafts(rows, V, 2, history):
                yield tokens, weight * chance, rows

    assert error_of(law, target, coin, 3) < EXACT


@EVERY_LAW
def test_penalties_of_the_rounds_start_for_all_its_rows_are_caught(law) -> None:
    seed = 6
    target, draft = random_rows(seed, V, "penalised")

    def stale(history: Prefix, tokens: Prefix):
        prefixes = (history + tokens[:index] for index in range(len(tokens) + 1))
        return np.array([penalised_rows(seed, V, prefix, history)[0] for prefix in prefixes])

    def current(history: Prefix, tokens: Prefix):
        prefixes = (history + tokens[:index] for index in range(len(tokens) + 1))
        return np.array([penalised_rows(seed, V, prefix, prefix)[0] for prefix in prefixes])

    source = sampled(draft, V, 2)
    assert error_of(law, target, source, 4, rounds=2, judged=stale) > CAUGHT
    assert error_of(law, target, source, 4, rounds=2, judged=current) < EXACT


def test_judging_every_row_by_the_history_of_the_rounds_start_is_caught_in_matching() -> None:
    target, draft = random_rows(6, V, "dirichlet")

    def first_row_only(history: Prefix, tokens: Prefix):
        return np.repeat(target(history)[None], len(tokens) + 1, axis=0)

    source = sampled(draft, V, 2)
    assert error_of(onehot, target, source, 3, judged=first_row_only) > CAUGHT


def test_matching_is_exact_for_a_malicious_draft_that_knows_the_target() -> None:
    target, _ = random_rows(3, V, "dirichlet")

    def least_likely(history: Prefix, accepted: int | None):
        token = int(np.argmin(target(history)))
        yield (token, token), 1.0, target

    assert error_of(lambda d, q, p: onehot_law(d, p), target, least_likely, 3) < EXACT
