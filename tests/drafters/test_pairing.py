from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import structlog

from outrider.drafters.pairing import pair
from outrider.errors import CorruptModel, VocabularyMismatch
from outrider.models import ModelFolder, write_draft_vocabulary
from outrider.text import HFTokenizer
from outrider.types import TargetInfo

from .vocabularies import byte_level_json, write_model

COMMON = (" the", " of", "ing", "self")


def target_of(tokenizer_json: str | None, *, eos: frozenset[int] = frozenset()) -> TargetInfo:
    size = 0 if tokenizer_json is None else HFTokenizer(tokenizer_json).vocab_size + 7
    return TargetInfo("big", "hash", size, "f", eos, 256, tokenizer_json=tokenizer_json)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., ModelFolder]:
    def make(tokenizer_json: str, **options: object) -> ModelFolder:
        size = HFTokenizer(tokenizer_json).vocab_size
        path = write_model(tmp_path / "small", tokenizer_json, vocab_size=size, **options)  # type: ignore[arg-type]
        return ModelFolder(path, "small", "hash", "float32")

    return make


def test_a_model_with_the_same_tokenizer_needs_no_translation(folder) -> None:
    vocabulary = byte_level_json(COMMON)
    assert pair(folder(vocabulary), target_of(vocabulary)) is None


def test_a_trimmed_model_drafts_the_tokens_that_it_has(folder) -> None:
    vocabulary = byte_level_json(COMMON)
    kept = [*range(257), 259]
    small = folder(vocabulary, rows=kept)
    write_draft_vocabulary(small.path, np.array(kept))
    translation = pair(small, target_of(vocabulary))
    assert translation is not None
    assert translation.target_ids.tolist() == kept
    assert translation.pieces(259) == (257,)
    assert len(translation.pieces(258)) == len("ing")


def test_a_trimmed_model_of_another_tokenizer_is_refused(folder) -> None:
    kept = list(range(256))
    small = folder(byte_level_json(COMMON), rows=kept)
    write_draft_vocabulary(small.path, np.array(kept))
    with pytest.raises(VocabularyMismatch, match="do not share a vocabulary"):
        pair(small, target_of(byte_level_json(("other", *COMMON))))


@pytest.mark.parametrize("kept", [[0, 1, 2], [*range(255), 300]])
def test_a_trimmed_model_whose_files_contradict_each_other_is_refused(folder, kept) -> None:
    vocabulary = byte_level_json(COMMON)
    small = folder(vocabulary, rows=list(range(256)))
    write_draft_vocabulary(small.path, np.array(kept))
    with pytest.raises(CorruptModel, match=r"ids up to .* config.json says 256 .*261"):
        pair(small, target_of(vocabulary))


def test_another_tokenizer_that_shares_enough_is_translated_and_told_of(folder) -> None:
    ours = byte_level_json(COMMON, ("<|end|>", "<|user|>"))
    small = folder(byte_level_json(COMMON[::-1], ("<s>", "<|user|>"), reverse=True), eos=260)
    with structlog.testing.capture_logs() as told:
        translation = pair(small, target_of(ours, eos=frozenset({260})))
    assert translation is not None
    (entry,) = told
    assert entry["event"] == "draft_vocabulary_translated"
    assert (entry["shared_tokens"], entry["target_tokens"]) == (262, 262)
    assert entry["share_of_text"] == 1.0
    assert translation.target_ids[260] == 260  # both end an output
    assert translation.target_ids[261] == 261  # both are called <|user|>


def test_another_tokenizer_that_shares_too_little_is_refused_with_the_numbers(folder) -> None:
    letters = [chr(code) for code in range(97, 123)]
    ours = byte_level_json([first + second for first in letters for second in letters])
    # Pairs are merged in the target alone.
    tokenizer = HFTokenizer(_with_merges(ours, letters))
    small = folder(byte_level_json(()))
    info = target_of(_with_merges(ours, letters))
    with pytest.raises(VocabularyMismatch) as caught:
        pair(small, info)
    message = str(caught.value)
    for part in ("'small'", "'big'", f"share 257 of the target's {tokenizer.vocab_size}", "70%"):
        assert part in message
    assert "suffix" in message
    assert "\n" not in message


def _with_merges(tokenizer_json: str, letters: list[str]) -> str:
    merges = ", ".join(f'["{first}", "{second}"]' for first in letters for second in letters)
    return tokenizer_json.replace('"merges":[]', f'"merges":[{merges}]')


def test_a_target_without_words_has_no_draft_model(folder) -> None:
    with pytest.raises(VocabularyMismatch, match="has none; use ngram"):
        pair(folder(byte_level_json(COMMON)), target_of(None))
