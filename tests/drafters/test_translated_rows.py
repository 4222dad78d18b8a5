"""Rows of a draft's own ids against the same rows spread over the target's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outrider.drafters import translated_rows
from outrider.drafters.translated_rows import translated_sampler
from outrider.errors import RequestError
from outrider.sampling import History, TokenSampler
from outrider.sampling.device import DeviceSampler
from outrider.types import SamplingParams

from .vocabularies import tiny_translation

VOCAB = 48
TRIMMED = [i for i in range(VOCAB) if i not in (30, 31, 40)]
SHUFFLED = [-1, *np.random.default_rng(0).permutation(TRIMMED).tolist(), -1]
PARAMS = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.6, "top_k": 7},
    {"temperature": 1.3, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 0.0, "repetition_penalty": 1.5, "frequency_penalty": 0.5},
    {"logit_bias": {30: 50.0, 3: 2.0}, "bad_words": ((4,), (1, 5))},
    {"allowed_token_ids": frozenset({2, 3, 30}), "presence_penalty": 1.0},
]


@pytest.fixture(params=["host", "device"])
def _place(request, monkeypatch) -> None:
    if request.param == "device":
        monkeypatch.setattr(translated_rows, "sampler_on", lambda device: DeviceSampler)


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize("target_ids", [TRIMMED, SHUFFLED], ids=["trimmed", "shuffled"])
@pytest.mark.parametrize("fields", PARAMS, ids=str)
def test_a_row_is_that_of_the_target_with_nothing_outside(target_ids, fields) -> None:
    params = SamplingParams(**fields)
    translation = tiny_translation(target_ids, size=VOCAB)
    factory = translated_sampler(translation, VOCAB, torch.device("cpu"))
    draw = np.random.default_rng(1)
    for key in range(30):
        sampler, whole_sampler = factory(params, key, 1), TokenSampler(params, key, 1)
        history = History((1, 2, 3), draw.integers(VOCAB, size=5).tolist())
        row = draw.standard_normal(len(target_ids)).astype(np.float32)
        whole = np.full(VOCAB, -np.inf, dtype=np.float32)
        for value, target_id in zip(row, target_ids, strict=True):
            if target_id >= 0:
                whole[target_id] = value
        logits = torch.from_numpy(row)
        token_id = sampler.sample(logits, history)
        assert token_id == whole_sampler.sample(whole, history)
        found = sampler.head(logits, history, 6)
        expected = whole_sampler.head(whole, history, 6)
        assert found.ids.tolist() == expected.ids.tolist()
        np.testing.assert_allclose(found.probs(), expected.probs(), rtol=1e-12)


@pytest.mark.usefixtures("_place")
def test_constraints_that_leave_none_of_the_drafts_tokens_are_an_error() -> None:
    translation = tiny_translation(TRIMMED, size=VOCAB)
    params = SamplingParams(allowed_token_ids=frozenset({30, 31}))
    sampler = translated_sampler(translation, VOCAB, torch.device("cpu"))(params, 0)
    with pytest.raises(RequestError, match="no token is left"):
        sampler.sample(torch.zeros(len(TRIMMED)), History((1,)))
