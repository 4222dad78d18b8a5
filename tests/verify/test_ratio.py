"""The ratio samplers follow their laws, by the intervals of their uniforms, and look lazily."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from outrider.types import DraftRow, SampledDraft
from outrider.verify import block_law, declare, token_law, verify_block, verify_tokens
from tests.verify.mutants import reaches_and_passes
from tests.verify.oracle import (
    EXACT,
    KINDS,
    Prefix,
    Probs,
    drafts,
    law_as_table,
    random_rows,
    stack,
    table_error,
)

V = 3
BELOW_ONE = float(np.nextafter(1.0, 0.0))
RULES = pytest.mark.parametrize(
    ("verify", "law"),
    [(verify_tokens, token_law), (verify_block, block_law)],
    ids=["token", "block"],
)
EITHER = pytest.mark.parametrize("verify", [verify_tokens, verify_block], ids=["token", "block"])


@dataclass(frozen=True)
class Row:
    """A target row over its support (`sparse`) or over every id."""

    dense: Probs
    sparse: bool = False

    @property
    def token_ids(self):
        return np.flatnonzero(self.dense) if self.sparse else None

    def probs(self):
        return self.dense[self.token_ids] if self.sparse else self.dense

    def probs_at(self, token_ids):
        return self.dense[token_ids].astype(np.float64)


class Rows:
    """Target rows that note which were asked for."""

    def __init__(self, dense: Probs, *, sparse: bool = False) -> None:
        self.asked: list[int] = []
        self._rows = [Row(row, sparse) for row in dense]

    def __call__(self, index: int) -> Row:
        self.asked.append(index)
        return self._rows[index]


def declared(row: Probs) -> DraftRow:
    return declare(np.arange(row.size), row, row.size)


def dense(row: DraftRow, vocab_size: int = V) -> Probs:
    probs = np.zeros(vocab_size)
    probs[row.token_ids] = row.probs()
    return probs


def draft_of(tokens: Prefix, rows: Probs) -> SampledDraft:
    return SampledDraft(tokens, tuple(declared(row) for row in rows), "test")


def as_table(verify, law, draft: SampledDraft, draft_rows, target_rows, *, sparse: bool):
    """Probability by what the sampler returns: constant between the points where one of its
    comparisons flips."""
    if law is token_law:
        ratios = [
            target_rows[i, token] / draft_rows[i, token] for i, token in enumerate(draft.token_ids)
        ]
        passes, reaches = [float(min(1.0, ratio)) for ratio in ratios], [1.0] * len(draft)
    else:
        reaches, passes = reaches_and_passes(draft.token_ids, draft_rows, target_rows)
        passes = passes[1:]
    rests = [
        np.maximum(reach * target_row - draft_row, 0.0)
        for reach, target_row, draft_row in zip(reaches, target_rows, draft_rows, strict=False)
    ]
    rows = [row / row.sum() for row in rests if row.sum() > 0] + list(target_rows)
    edges = np.clip(np.concatenate([[0.0, 1.0], *(np.cumsum(row) for row in rows)]), 0.0, 1.0)
    points = [beside(passed) for passed in passes] + [beside_cuts(edges)]
    table: dict[tuple[int, int], float] = {}
    for cell in itertools.product(*points):
        uniforms = np.array([point for point, _ in cell])
        key = verify(draft, Rows(target_rows, sparse=sparse), uniforms)
        table[key] = table.get(key, 0.0) + float(np.prod([weight for _, weight in cell]))
    return table


def beside_cuts(cuts) -> list[tuple[float, float]]:
    """Points close to both ends of every interval between cuts, each for half of it, so that a
    decision which flips anywhere but at a cut shows."""
    points = []
    for low, high in itertools.pairwise(np.unique(cuts)):
        step = min(1e-9, (high - low) / 4)
        points += [(low + step, (high - low) / 2), (high - step, (high - low) / 2)]
    return points


def beside(cut: float) -> list[tuple[float, float]]:
    """Points just below and above the only cut of a test, each for all of its side."""
    sides = [(cut - min(1e-9, cut / 2), cut), (cut + min(1e-9, (1 - cut) / 2), 1 - cut)]
    return [(point, weight) for point, weight in sides if weight > 0.0]


@RULES
@pytest.mark.parametrize("sparse", [False, True], ids=["full", "sparse"])
@pytest.mark.parametrize(
    ("k", "kind"), [*itertools.product([1, 2], KINDS), (3, "dirichlet"), (3, "warped")]
)
def test_a_sampler_follows_its_law(k: int, kind: str, sparse: bool, verify, law) -> None:
    target, draft = random_rows(13, V, kind)
    for tokens, _ in itertools.islice(drafts(draft, V, k), 0, None, 2 * k - 1):
        sampled = draft_of(tokens, stack(draft, tokens, k))
        if any(token not in row.token_ids for token, row in zip(tokens, sampled.rows, strict=True)):
            continue  # too unlikely to be drawn from counts
        draft_rows = np.array([*map(dense, sampled.rows)])
        target_rows = stack(target, tokens, k + 1)
        found = as_table(verify, law, sampled, draft_rows, target_rows, sparse=sparse)
        assert table_error(found, law_as_table(law(tokens, draft_rows, target_rows))) < EXACT


@RULES
@pytest.mark.parametrize("sparse", [False, True], ids=["full", "sparse"])
def test_a_sampler_follows_its_law_on_draft_rows_with_few_tokens_of_many(
    sparse: bool, verify, law
) -> None:
    size, k = 8, 2
    target, draft = random_rows(23, size, "zeros")
    for places in itertools.product(range(3), repeat=k):
        tokens: Prefix = ()
        rows: list[DraftRow] = []
        for place in places:
            rows.append(declare(np.arange(size), draft(tokens), 3))
            tokens += (int(rows[-1].token_ids[place]),)
        draft_rows = np.array([dense(row, size) for row in rows])
        target_rows = stack(target, tokens, k + 1)
        sampled = SampledDraft(tokens, tuple(rows), "test")
        found = as_table(verify, law, sampled, draft_rows, target_rows, sparse=sparse)
        assert table_error(found, law_as_table(law(tokens, draft_rows, target_rows))) < EXACT


FLAT = np.full(V, 1 / V)


def test_verify_tokens_asks_for_rows_up_to_the_first_rejection() -> None:
    rows = Rows(np.array([[0.2, 0.4, 0.4], FLAT, FLAT]))
    draft = draft_of((0, 0), np.array([[0.8, 0.1, 0.1], FLAT]))
    assert verify_tokens(draft, rows, np.array([0.9, 0.0, 0.0])) == (0, 1)
    assert rows.asked == [0]


def test_verify_block_asks_for_the_last_row_only_for_a_bonus_token() -> None:
    draft = draft_of((0, 0), np.array([[0.8, 0.1, 0.1], FLAT]))
    rows = Rows(np.array([[0.2, 0.4, 0.4], FLAT, FLAT]))
    assert verify_block(draft, rows, np.array([0.9, 0.9, 0.0])) == (0, 1)
    assert rows.asked == [0, 1]
    rows = Rows(np.array([[0.2, 0.4, 0.4], FLAT, FLAT]))
    assert verify_block(draft, rows, np.array([0.9, 0.0, 0.0])) == (2, 0)
    assert rows.asked == [0, 1, 2]


def test_verify_block_asks_for_no_row_behind_a_token_that_the_target_never_emits() -> None:
    rows = Rows(np.array([FLAT, [0.0, 0.5, 0.5], FLAT, FLAT]))
    draft = draft_of((1, 0, 2), np.array([FLAT, FLAT, FLAT]))
    accepted, token = verify_block(draft, rows, np.zeros(4))
    assert (accepted, token) == (1, 1)
    assert rows.asked == [0, 1]


@EITHER
def test_a_token_of_probability_zero_is_never_emitted_however_sums_round(verify) -> None:
    bonus = np.array([0.1] * 10 + [0.0])
    draft = SampledDraft((0,), (declared(np.eye(11)[0]),), "test")
    rows = Rows(np.array([np.eye(11)[0], bonus]))
    assert verify(draft, rows, np.array([0.0, BELOW_ONE])) == (1, 9)


@EITHER
def test_not_even_a_subnormal_sum_makes_room_for_a_token_of_probability_zero(verify) -> None:
    draft = SampledDraft((0,), (declared(np.eye(2)[0]),), "test")
    rows = Rows(np.array([[1.0, 0.0], [5e-324, 0.0]]))
    assert verify(draft, rows, np.array([0.0, BELOW_ONE])) == (1, 0)


@EITHER
@pytest.mark.parametrize("sparse", [False, True])
def test_a_residual_never_holds_a_token_that_only_the_draft_has(verify, sparse: bool) -> None:
    draft = draft_of((0,), np.array([[0.5, 0.0, 0.5]]))
    for uniform in (0.0, 0.5, BELOW_ONE):
        rows = Rows(np.array([[0.0, 1.0, 0.0], FLAT]), sparse=sparse)
        assert verify(draft, rows, np.array([0.0, uniform])) == (0, 1)


@EITHER
@pytest.mark.parametrize("sparse", [False, True])
def test_a_rejection_by_rounding_alone_emits_from_the_targets_row(verify, sparse: bool) -> None:
    draft = draft_of((1,), np.array([[0.5, 0.5, 0.0]]))
    short = dense(draft.rows[0]) - [0.0, 1e-7, 0.0]  # rows in float32 may sum to less than 1
    row = Row(short, sparse)
    assert verify(draft, lambda _: row, np.array([BELOW_ONE, 0.9])) == (0, 1)


@EITHER
def test_rows_in_float32_that_sum_to_more_than_one_are_judged(verify) -> None:
    long = np.array([0.5, 0.5000001, 0.0], dtype=np.float32)
    draft = draft_of((0, 0), np.array([[0.5, 0.5, 0.0]] * 2))
    accepted, token = verify(draft, lambda _: Row(long), np.array([0.9, 0.9, 0.9]))
    assert (accepted, token) == (2, 1)


def test_a_row_that_sums_to_more_than_one_leaves_no_less_than_nothing_outside() -> None:
    draft = draft_of((0, 2), np.array([[0.5, 0.5, 0.0], [0.4, 0.4, 0.2]]))
    # By far more than rounding: the excess over 1 would cancel the surplus of 0.2 inside.
    rows = Rows(np.array([[0.4, 0.6, 0.0], [0.625, 0.625, 0.0], FLAT]))
    assert verify_block(draft, rows, np.array([0.4, 0.0, 0.9])) == (1, 1)


@EITHER
def test_a_declared_id_beyond_the_targets_vocabulary_counts_as_never_emitted(verify) -> None:
    class Padded(Row):
        def probs_at(self, token_ids):
            return np.append(self.dense, [0.0, 0.0])[token_ids]

    draft = SampledDraft((4,), (declare(np.array([0, 4]), np.array([0.5, 0.5]), 2),), "test")
    row = Padded(np.array([0.25, 0.75, 0.0]))
    assert verify(draft, lambda _: row, np.zeros(2)) == (0, 1)


@EITHER
def test_uniforms_that_do_not_fit_the_draft_are_refused(verify) -> None:
    draft = draft_of((0,), FLAT[None])
    with pytest.raises(ValueError, match="uniforms has shape"):
        verify(draft, Rows(np.array([FLAT, FLAT])), np.zeros(1))


@EITHER
def test_a_token_outside_its_declared_row_is_refused(verify) -> None:
    draft = draft_of((2,), np.array([[0.5, 0.5, 0.0]]))
    with pytest.raises(ValueError, match="test drafted token 2"):
        verify(draft, Rows(np.array([FLAT, FLAT])), np.zeros(2))


@EITHER
@pytest.mark.parametrize(("tokens", "rows"), [((), 0), ((0, 1), 1)])
def test_a_draft_without_a_row_for_each_token_is_refused(verify, tokens, rows: int) -> None:
    draft = SampledDraft(tokens, (declared(FLAT),) * rows, "test")
    with pytest.raises(ValueError, match="a draft of"):
        verify(draft, Rows(FLAT[None]), np.zeros(len(tokens) + 1))
