"""Declared rows: exact counts, truncation by what is likely, and exactness from end to end."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from outrider.errors import DraftFailed
from outrider.types import DRAFT_TOTAL
from outrider.verify import block_law, declare, draw, token_law
from tests.verify.oracle import EXACT, KINDS, Prefix, error_of, random_rows, sampled


def ids(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.int64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 2, 7, 32, 500])
@pytest.mark.parametrize("seed", range(5))
def test_counts_sum_to_the_total_and_lie_within_one_part_of_their_share(
    seed: int, size: int, dtype
) -> None:
    probs = np.random.default_rng(seed).dirichlet(np.full(200, 0.2)).astype(dtype)
    row = declare(ids(200), probs, size)
    assert row.token_ids.dtype == np.int64
    assert row.counts.dtype == np.uint16
    assert int(row.counts.sum(dtype=np.int64)) == DRAFT_TOTAL
    assert int(row.counts.min()) >= 1
    assert (np.diff(row.token_ids) > 0).all()
    kept = np.argsort(-probs, kind="stable")[:size]
    share = np.zeros(200)
    share[kept] = probs[kept].astype(np.float64) / probs[kept].astype(np.float64).sum()
    found = np.zeros(200)
    found[row.token_ids] = row.probs()
    assert np.abs(found - share).max() < 1 / DRAFT_TOTAL


def test_truncation_keeps_the_likeliest_and_the_lowest_ids_among_equals() -> None:
    token_ids = np.array([3, 5, 8, 9, 20], dtype=np.int64)
    row = declare(token_ids, np.array([0.1, 0.2, 0.2, 0.3, 0.2]), 3)
    assert row.token_ids.tolist() == [5, 8, 9]


def test_equal_remainders_go_to_the_lowest_ids() -> None:
    row = declare(ids(4), np.full(4, 0.25), 4)
    assert row.counts.tolist() == [16384, 16384, 16384, 16383]


def test_tokens_that_round_to_nothing_are_left_out() -> None:
    row = declare(ids(3), np.array([1.0, 1e-9, 1.0]), 3)
    assert row.token_ids.tolist() == [0, 2]


def test_a_certain_token_takes_every_ticket() -> None:
    row = declare(np.array([7]), np.array([0.3]), 4)
    assert (row.token_ids.tolist(), row.counts.tolist()) == ([7], [DRAFT_TOTAL])
    assert {draw(row, 0), draw(row, DRAFT_TOTAL - 1)} == {7}


@pytest.mark.parametrize("bad", [[0.0, 0.0], [np.nan, 0.5], [np.inf, 0.5]])
@pytest.mark.parametrize("size", [1, 2])
def test_probabilities_without_a_sum_are_a_failure_of_the_drafter(bad, size: int) -> None:
    with pytest.raises(DraftFailed, match="probabilities sum to"):
        declare(ids(2), np.array(bad), size)


def test_a_row_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="keep at least 1"):
        declare(ids(2), np.array([0.5, 0.5]), 0)


def test_every_token_holds_as_many_tickets_as_its_count() -> None:
    row = declare(2 * ids(9), np.random.default_rng(3).dirichlet(np.full(9, 0.3)), 6)
    drawn = np.bincount([draw(row, ticket) for ticket in range(DRAFT_TOTAL)], minlength=17)
    assert drawn[row.token_ids].tolist() == row.counts.tolist()
    assert drawn.sum() == DRAFT_TOTAL


@pytest.mark.parametrize("ticket", [-1, DRAFT_TOTAL])
def test_a_ticket_that_nobody_holds_is_refused(ticket: int) -> None:
    with pytest.raises(ValueError, match="lies outside"):
        draw(declare(ids(2), np.array([0.5, 0.5]), 2), ticket)


@pytest.mark.parametrize("law", [token_law, block_law], ids=lambda law: law.__name__)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2])
def test_drafts_drawn_from_truncated_rows_leave_the_output_exact(size: int, kind: str, law) -> None:
    target, draft = random_rows(29, 3, kind)

    @functools.cache
    def declared(prefix: Prefix) -> np.ndarray:
        row = declare(ids(3), draft(prefix), size)
        probs = np.zeros(3)
        probs[row.token_ids] = row.probs()
        return probs

    assert error_of(law, target, sampled(declared, 3, 2), 3) < EXACT
    assert error_of(law, target, sampled(declared, 3, 2), 4, rounds=2) < EXACT
