from __future__ import annotations

import numpy as np
import pytest
import torch

from outrider.drafters import SessionView
from outrider.drafters.picker import DRAFT_SUPPORT, Picker, Sampling
from outrider.sampling import History, TokenSampler, warp
from outrider.sampling.device import DeviceSampler
from outrider.types import DRAFT_TOTAL, NO_DRAFT, Draft, SampledDraft, SamplingParams

V = 1000
ROWS = 2 * np.random.default_rng(0).standard_normal((40, V))


def view(**params: object) -> SessionView:
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    return SessionView("s", [1, 2, 3], 3, 2, sampling, noise_key=5, choice=1)


def picked(picker: Picker, count: int) -> History:
    history = History((1, 2), (3,))
    for row in ROWS[:count]:
        picker.pick(row, history)
    return history


def test_a_matched_draft_is_what_the_target_would_sample_from_the_same_rows() -> None:
    seen = view(temperature=0.8, frequency_penalty=1.0, min_tokens=4)
    ends = frozenset(range(500))
    picker = Picker(Sampling(seen, ends))
    picked(picker, 10)
    sampler = TokenSampler(seen.sampling, 5, 1, end_token_ids=ends)
    history = History((1, 2), (3,))
    for row in ROWS[:10]:
        history.extend((sampler.sample(row, history),))
    draft = picker.draft("me")
    assert isinstance(draft, Draft)
    assert list(draft.token_ids) == history.tokens[3:]


def test_a_drawn_draft_declares_the_head_of_each_processed_row() -> None:
    seen = view(temperature=0.9, frequency_penalty=1.5)
    picker = Picker(Sampling(seen, frozenset()), np.random.default_rng(1))
    history = picked(picker, 20)
    draft = picker.draft("me")
    assert isinstance(draft, SampledDraft)
    assert list(draft.token_ids) == history.tokens[3:]
    sampler = TokenSampler(seen.sampling, 0)
    for index, row in enumerate(draft.rows):
        assert row.token_ids.size <= DRAFT_SUPPORT
        assert row.counts.sum() == DRAFT_TOTAL
        before = History((1, 2), (3, *draft.token_ids[:index]))
        head = sampler.support(ROWS[index], before).head(DRAFT_SUPPORT)
        expected = dict(zip(head.ids.tolist(), head.probs().tolist(), strict=True))
        for token, prob in zip(row.token_ids.tolist(), row.probs(), strict=True):
            assert abs(prob - expected[token]) < 1 / DRAFT_TOTAL


def test_rows_that_stay_on_a_device_give_the_same_drafts() -> None:
    rows = ROWS[:10].astype(np.float32)
    for seed in (None, 3):
        drafts = []
        for factory, given in ((TokenSampler, rows), (DeviceSampler, torch.from_numpy(rows))):
            rng = None if seed is None else np.random.default_rng(seed)
            picker = Picker(Sampling(view(frequency_penalty=1.0), frozenset(), factory), rng)
            history = History((1, 2), (3,))
            for row in given:
                picker.pick(row, history)
            drafts.append(picker.draft("me"))
        assert drafts[0].token_ids == drafts[1].token_ids


def test_drawn_tokens_follow_their_declared_row_and_not_the_sessions_noise() -> None:
    row = np.log([0.6, 0.3, 0.1])
    rng = np.random.default_rng(2)
    counts = np.zeros(3)
    for _ in range(5000):
        picker = Picker(Sampling(view(), frozenset()), rng)
        picker.pick(row, History((1, 2), (3,)))
        counts[picker.draft("me").token_ids[0]] += 1
    expected = 5000 * warp(row, SamplingParams()).probs()
    assert ((counts - expected) ** 2 / expected).sum() < 18.4  # chi-square, 2 df, 99.99%


def test_a_draft_ends_when_it_is_long_enough() -> None:
    picker = Picker(Sampling(view(), frozenset()))
    assert not picker.done(2)
    picked(picker, 2)
    assert picker.done(2)
    assert not picker.done(3)


def test_a_draft_ends_behind_a_token_that_ends_the_output_and_keeps_it() -> None:
    sharp = np.full(V, -np.inf)
    sharp[7] = 0.0
    picker = Picker(Sampling(view(stop_token_ids=frozenset({7})), frozenset({8})))
    picker.pick(sharp, History((1, 2), (3,)))
    assert picker.done(9)
    assert picker.draft("me").token_ids == (7,)


def test_a_draft_goes_on_behind_an_end_that_the_request_ignores() -> None:
    sharp = np.full(V, -np.inf)
    sharp[8] = 0.0
    picker = Picker(Sampling(view(ignore_eos=True), frozenset({8})))
    picker.pick(sharp, History((1, 2), (3,)))
    assert not picker.done(9)


def test_without_a_token_there_is_no_draft() -> None:
    assert Picker(Sampling(view(), frozenset()), np.random.default_rng(0)).draft("me") is NO_DRAFT


@pytest.mark.parametrize(("ticket", "token"), [(0, 0), (DRAFT_TOTAL - 1, 2)])
def test_every_ticket_of_a_declared_row_can_be_drawn(ticket: int, token: int) -> None:
    class Rigged(np.random.Generator):
        def integers(self, low, *args, **options):
            assert (low, args, options) == (DRAFT_TOTAL, (), {})
            return ticket

    picker = Picker(Sampling(view(), frozenset()), Rigged(np.random.PCG64(0)))
    picker.pick(np.log([0.5, 0.4999, 0.0001]), History((1, 2), (3,)))
    assert picker.draft("me").token_ids == (token,)
