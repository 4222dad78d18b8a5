from __future__ import annotations

import numpy as np
import pytest

from outrider.errors import TargetFailed
from outrider.sampling import History, TokenSampler, noise_key, warp
from outrider.types import SamplingParams
from outrider.verify import coupling_acceptance

PLAIN = SamplingParams(temperature=1.0)


def dense_probs(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    return warp(logits, params).dense(logits.size)


def draw(sampler: TokenSampler, logits: np.ndarray, count: int) -> np.ndarray:
    """Tokens at positions 0 .. count - 1, all from the same logits."""
    history = History(())
    tokens = []
    for _ in range(count):
        tokens.append(sampler.sample(logits, history))
        history.extend((0,))
    return np.array(tokens)


def g_statistic(counts: np.ndarray, probs: np.ndarray) -> float:
    expected = probs * counts.sum()
    seen = counts > 0
    return float(2 * (counts[seen] * np.log(counts[seen] / expected[seen])).sum())


@pytest.mark.parametrize(
    "params",
    [PLAIN, SamplingParams(temperature=0.7, top_p=0.8), SamplingParams(top_k=3, min_p=0.1)],
)
def test_samples_over_positions_follow_the_processed_distribution(params: SamplingParams) -> None:
    logits = np.random.default_rng(0).standard_normal(8)
    sampler = TokenSampler(params, noise_key(1))
    draws = draw(sampler, logits, 20_000)
    probs = dense_probs(logits, params)
    counts = np.bincount(draws, minlength=8)
    assert counts[probs == 0].sum() == 0
    assert g_statistic(counts, probs) < 29.9  # chi-square, 7 degrees of freedom, 99.99%


def test_neighbouring_samples_are_independent() -> None:
    logits = np.log([0.5, 0.3, 0.2])
    sampler = TokenSampler(PLAIN, noise_key(2))
    draws = draw(sampler, logits, 20_001)
    pairs = np.bincount(3 * draws[:-1] + draws[1:], minlength=9)
    probs = np.exp(logits)
    assert (
        g_statistic(pairs, np.outer(probs, probs).ravel()) < 33.7
    )  # 8 degrees of freedom, 99.995%


def test_copies_of_a_request_draw_independently() -> None:
    logits = np.log([0.5, 0.3, 0.2])
    one, two = (TokenSampler(PLAIN, noise_key(3), choice) for choice in (0, 1))
    draws = 3 * draw(one, logits, 20_000) + draw(two, logits, 20_000)
    probs = np.exp(logits)
    assert g_statistic(np.bincount(draws, minlength=9), np.outer(probs, probs).ravel()) < 33.7


def test_a_coupled_draft_agrees_as_often_as_the_formula_says() -> None:
    target, draft = np.random.default_rng(5).standard_normal((2, 6))
    sampler = TokenSampler(PLAIN, noise_key(4))
    trials = 20_000
    agreed = int((draw(sampler, target, trials) == draw(sampler, draft, trials)).sum())
    expected = coupling_acceptance(dense_probs(draft, PLAIN), dense_probs(target, PLAIN))
    assert agreed / trials == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(trials))


def test_truncation_does_not_change_the_noise_of_what_it_keeps() -> None:
    logits = np.random.default_rng(6).standard_normal(50)
    whole = TokenSampler(PLAIN, noise_key(7))
    cut = TokenSampler(SamplingParams(top_k=20), noise_key(7))
    kept = set(np.argsort(-logits)[:20].tolist())
    pairs = zip(draw(whole, logits, 200), draw(cut, logits, 200), strict=True)
    agreements = [one == two for one, two in pairs if one in kept]
    assert len(agreements) > 100
    assert all(agreements)


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    sampler = TokenSampler(SamplingParams(temperature=0.0), noise_key(0))
    assert sampler.sample(np.array([0.0, 3.0, 3.0], dtype=np.float32), History(())) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_refused(temperature: float) -> None:
    sampler = TokenSampler(SamplingParams(temperature=temperature), noise_key(0))
    with pytest.raises(TargetFailed, match="weights are broken"):
        sampler.sample(np.array([0.0, np.nan]), History(()))
