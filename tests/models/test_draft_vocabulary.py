from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from outrider.errors import CorruptModel
from outrider.models import (
    DRAFT_VOCABULARY,
    load_text_assets,
    read_draft_vocabulary,
    write_draft_vocabulary,
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_draft_vocabulary(tmp_path, np.array([0, 3, 7]))
    found = read_draft_vocabulary(tmp_path)
    assert found is not None
    assert found.dtype == np.int64
    assert found.tolist() == [0, 3, 7]


def test_a_model_without_the_file_is_not_trimmed(tmp_path: Path) -> None:
    assert read_draft_vocabulary(tmp_path) is None


WRONG = [
    np.array([3, 1]),
    np.array([1, 1]),
    np.array([-1, 2]),
    np.array([1, 2], dtype=np.int32),
    np.array([[1, 2]]),
    np.array([], dtype=np.int64),
]


@pytest.mark.parametrize("target_ids", WRONG, ids=str)
def test_ids_of_another_form_are_neither_written_nor_read(tmp_path: Path, target_ids) -> None:
    with pytest.raises(ValueError, match="ascending"):
        write_draft_vocabulary(tmp_path, target_ids)
    save_file({"target_ids": target_ids}, tmp_path / DRAFT_VOCABULARY)
    with pytest.raises(CorruptModel, match=rf"{DRAFT_VOCABULARY} must hold .* export"):
        read_draft_vocabulary(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / DRAFT_VOCABULARY).write_bytes(b"damaged")
    with pytest.raises(CorruptModel, match=f"{DRAFT_VOCABULARY} cannot be read"):
        read_draft_vocabulary(tmp_path)


def test_ends_that_a_trimmed_drafts_config_names_in_its_own_ids_are_left_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 40}')
    assert load_text_assets(tmp_path).eos_token_ids == {2, 40}
    write_draft_vocabulary(tmp_path, np.array([5, 9, 40]))
    assert load_text_assets(tmp_path).eos_token_ids == {40}
