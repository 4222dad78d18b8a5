"""From `--draft FOLDER` to a model that drafts, whatever its vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.config import Settings
from outrider.drafters import SessionView, create_drafter
from outrider.engine import EngineThread, Lane, load_model
from outrider.models import write_draft_vocabulary
from outrider.text import HFTokenizer
from outrider.types import SamplingParams, TargetInfo

from .vocabularies import byte_level_json, write_model

pytestmark = pytest.mark.anyio

VOCABULARY = byte_level_json((" the", " of", "ing", "self"))
OTHER = byte_level_json(("self", "ing", " of"), reverse=True)
SIZE = HFTokenizer(VOCABULARY).vocab_size
SETTINGS = Settings(engine={"dtype": "float32", "threads": 1, "max_sessions": 2})
TOKENS = [5, 257, 80, 259, 40]


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[Lane]:
    path = write_model(tmp_path / "target", VOCABULARY, vocab_size=SIZE)
    decoder = load_model(path, dtype=torch.float32, device=torch.device("cpu"))
    engine = EngineThread(threads=1)
    yield Lane(engine, decoder, num_slots=2, max_length=128, step_tokens=64, kv_tokens=200)
    engine.close()


INFO = TargetInfo(
    "target", "hash", SIZE, "print", frozenset({SIZE - 1}), 128, tokenizer_json=VOCABULARY
)


async def drafted(spec: object, lane: Lane, *, max_tokens: int = 100) -> tuple[int, ...]:
    drafter = create_drafter(str(spec), INFO, lane, SETTINGS)
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    view = SessionView("s", TOKENS, len(TOKENS), 3, sampling, noise_key=1)
    try:
        assert (await drafter.describe()).vocab_fingerprint == "print"
        assert (await drafter.describe()).context_length == 128
        return (await drafter.propose(view, 6)).token_ids
    finally:
        await drafter.close()


def trimmed(folder: Path, kept: list[int]) -> Path:
    path = write_model(folder, VOCABULARY, vocab_size=SIZE, rows=kept, eos=SIZE - 1)
    write_draft_vocabulary(path, np.array(kept))
    return path


async def test_a_trimmed_draft_says_what_the_whole_one_says_where_nothing_is_lost(
    tmp_path: Path, lane: Lane
) -> None:
    whole = await drafted(write_model(tmp_path / "whole", VOCABULARY, vocab_size=SIZE), lane)
    kept = sorted({*range(100, SIZE), *TOKENS, *whole})
    assert await drafted(trimmed(tmp_path / "trimmed", kept), lane) == whole


async def test_a_draft_of_another_family_drafts_the_targets_tokens(
    tmp_path: Path, lane: Lane
) -> None:
    path = write_model(tmp_path / "other", OTHER, vocab_size=SIZE - 1)
    found = await drafted(path, lane)
    assert len(found) == 6
    assert all(0 <= token < SIZE for token in found)


async def test_a_translated_draft_takes_part_in_a_mix(tmp_path: Path, lane: Lane) -> None:
    path = write_model(tmp_path / "other", OTHER, vocab_size=SIZE - 1)
    mixed = create_drafter(f"mixed:ngram+{path}", INFO, lane, SETTINGS)
    assert (await mixed.describe()).name == "mixed:ngram+other"
    await mixed.close()


async def test_what_fits_the_target_fits_a_draft_that_reads_twice_as_much(
    tmp_path: Path, lane: Lane
) -> None:
    """The target's cache holds 200 tokens, and its context 128."""
    kept = [i for i in range(SIZE) if i not in TOKENS[1::2]]
    path = trimmed(tmp_path / "trimmed", kept)
    assert len(await drafted(path, lane, max_tokens=120)) == 6
