"""Acceptance given the text: formulas against the real noise and the enumerated laws."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from outrider.sampling import Support, warp
from outrider.sampling.race import winner
from outrider.train.acceptance import (
    SparseRow,
    block_survival,
    coupled,
    ratio,
    sparse_row,
    survival,
)
from outrider.types import SamplingParams
from outrider.verify import block_law, coupling_acceptance, token_law

SIZE = 5
SAMPLED = SamplingParams(temperature=1.0)


def rows(seed: int, count: int = 2, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(size, 0.7), count)


def whole(probs: np.ndarray, said: int) -> SparseRow:
    return SparseRow(np.arange(probs.size), probs, 0.0, float(probs[said]))


def support(probs: np.ndarray) -> Support:
    logits = np.log(probs)
    return Support(None, logits, float(logits.max()), 1.0)


def test_coupled_acceptance_given_the_token_is_how_often_the_real_noise_agrees() -> None:
    target, draft = rows(1)
    places = 20_000
    said = np.array([winner(support(target), 7, 0, place) for place in range(places)])
    drafted = np.array([winner(support(draft), 7, 0, place) for place in range(places)])
    for token in range(SIZE):
        here = said == token
        expected = coupled(whole(target, token), draft, float(draft[token]))
        error = np.sqrt(expected * (1 - expected) / here.sum())
        assert (drafted[here] == token).mean() == pytest.approx(expected, abs=4 * error)
    # The two distributions differ, and the test would tell that from agreement by chance.
    assert 0.3 < (said == drafted).mean() < 0.9


@pytest.mark.parametrize("seed", range(4))
def test_coupled_acceptance_over_all_tokens_is_that_of_the_coupling(seed) -> None:
    target, draft = rows(seed)
    given = [coupled(whole(target, y), draft, float(draft[y])) for y in range(SIZE)]
    assert float(target @ given) == pytest.approx(coupling_acceptance(draft, target), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_coupled_acceptance_is_the_integral_over_the_clock_of_the_token(seed) -> None:
    target, draft = rows(seed)
    for token in range(SIZE):
        # Every other token's clock has to show more than this one's, as either model reads it.
        rates = np.maximum(target / target[token], draft / draft[token])
        times = np.linspace(0, 40 / rates.sum(), 100_001)
        both = np.trapezoid(np.exp(-times[:, None] * rates).prod(axis=1), times)
        expected = coupled(whole(target, token), draft, float(draft[token]))
        assert both / target[token] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("scale", [1.0, 6.0])
def test_what_is_left_out_of_a_row_changes_acceptance_by_less_than_its_mass(scale) -> None:
    draw = np.random.default_rng(0)
    for _ in range(10):
        logits = draw.normal(0, scale, 3000)
        target = warp(logits, SAMPLED)
        probs = target.dense(3000)
        draft = warp(logits + draw.normal(0, 1, 3000), SAMPLED).dense(3000)
        for said in (int(probs.argmax()), int(probs.argmin()), 7):
            row = sparse_row(target, said)
            exact = coupled(whole(probs, said), draft, float(draft[said]))
            found = coupled(row, draft[row.token_ids], float(draft[said]))
            assert row.said == pytest.approx(probs[said])
            assert 0 <= row.tail <= 1e-4
            assert row.tail == pytest.approx(1 - probs[row.token_ids].sum(), abs=1e-6)
            assert found == pytest.approx(exact, rel=2e-4)
            assert ratio(row, float(draft[said])) == pytest.approx(draft[said] / probs[said])
    assert (row.token_ids.size < 2000) == (scale > 1)


def test_what_the_draft_cannot_say_is_never_accepted() -> None:
    target = whole(np.array([0.5, 0.5]), 0)
    assert coupled(target, np.array([0.0, 1.0]), 0.0) == 0.0
    assert ratio(target, 0.0) == 0.0


def test_equal_rows_are_always_accepted() -> None:
    (target,) = rows(3, 1)
    for token in range(SIZE):
        row = whole(target, token)
        assert coupled(row, target, float(target[token])) == pytest.approx(1.0)


def contexts(seed: int, length: int) -> dict[tuple[int, ...], np.ndarray]:
    """A row for every text of up to `length` of three tokens."""
    draw = np.random.default_rng(seed)
    return {
        text: draw.dirichlet(np.full(3, 0.6))
        for size in range(length + 1)
        for text in itertools.product(range(3), repeat=size)
    }


def ends_given_text(law, target, draft, lookahead: int, text: tuple[int, ...]) -> np.ndarray:
    """How many drafted tokens hold, given that `text` came of the round and what followed."""
    weights = np.zeros(lookahead + 1)
    for drafted in itertools.product(range(3), repeat=lookahead):
        paths = [drafted[:i] for i in range(lookahead + 1)]
        drawn = np.prod([draft[path][token] for path, token in zip(paths, drafted, strict=False)])
        outcomes = law(
            drafted,
            np.array([draft[path] for path in paths[:-1]]),
            np.array([target[path] for path in paths]),
        )
        for outcome in outcomes:
            held = outcome.accepted_count
            if drafted[:held] != text[:held]:
                continue
            rest = [target[text[:i]][text[i]] for i in range(held + 1, len(text))]
            follows = outcome.next_probs[text[held]] * np.prod(rest)
            weights[held] += drawn * outcome.probability * follows
    said = np.prod([target[text[:i]][text[i]] for i in range(len(text))])
    assert weights.sum() == pytest.approx(said)  # what is emitted is the target's
    return weights / said


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("law", [token_law, block_law])
def test_given_the_text_ratios_accept_as_the_enumerated_law_does(law, seed) -> None:
    lookahead = 3
    target, draft = contexts(seed, lookahead), contexts(seed + 100, lookahead)
    reach = block_survival if law is block_law else survival
    for text in itertools.product(range(3), repeat=lookahead + 1):
        ratios = [draft[text[:i]][text[i]] / target[text[:i]][text[i]] for i in range(lookahead)]
        reached = reach(ratios, lookahead)[0]
        held = reached - np.append(reached[1:], 0.0)
        np.testing.assert_allclose(
            held, ends_given_text(law, target, draft, lookahead, text), atol=1e-9
        )


def test_block_ratios_accept_no_less_than_token_ratios() -> None:
    ratios = np.random.default_rng(0).lognormal(0, 1, 50)
    token, block = survival(ratios, 6), block_survival(ratios, 6)
    assert (block >= token - 1e-12).all()
    assert (block > token + 0.01).any()
    assert (np.diff(block, axis=1) <= 1e-12).all()


def test_nothing_is_accepted_beyond_the_end_of_the_text() -> None:
    for reach in (survival, block_survival):
        np.testing.assert_array_equal(reach([1.0, 1.0, 1.0], 2), [[1, 1, 1], [1, 1, 1], [1, 1, 0]])


def test_a_ratio_without_bound_counts_as_certain() -> None:
    assert survival([np.inf, 0.5], 2)[0].tolist() == pytest.approx([1, 1, 0.5])
    assert block_survival([0.5, np.inf], 2)[0].tolist() == pytest.approx([1, 0.5, 0.5])


@pytest.mark.parametrize("params", [SAMPLED, SamplingParams(top_k=4), SamplingParams(top_p=0.6)])
def test_a_sparse_row_is_of_the_distribution_that_is_sampled(params) -> None:
    logits = np.random.default_rng(1).normal(0, 2, 40)
    exact = warp(logits, params)
    row = sparse_row(exact, int(logits.argmax()))
    np.testing.assert_allclose(row.probs, exact.dense(40)[row.token_ids], rtol=1e-6)
    assert row.token_ids.size <= exact.size
    assert row.probs.sum() + row.tail == pytest.approx(1.0, abs=1e-6)
