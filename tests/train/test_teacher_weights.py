from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from outrider.errors import ConfigError, CorruptModel, UnsupportedModel
from outrider.train.teacher_weights import find_target, float_folder
from tests.train.toy import toy_settings, toy_target, write_toy


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "toy")


def test_a_folder_is_used_as_it_is(toy: Path, tmp_path: Path) -> None:
    folder = float_folder(str(toy), home=tmp_path / "home")
    assert folder.path == toy
    assert not (tmp_path / "home").exists()


def test_a_folder_with_4_bit_weights_is_refused(toy: Path, tmp_path: Path) -> None:
    weights = load_file(toy / "model.safetensors")
    name = "model.layers.0.mlp.up_proj."
    weights[f"{name}codes"] = np.zeros((96, 32), dtype=np.uint8)
    del weights[f"{name}weight"]
    save_file(weights, toy / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"4-bit weights \(model\.layers\.0"):
        float_folder(str(toy), home=tmp_path)


def test_rotary_frequencies_that_transformers_cannot_read_are_refused(
    toy: Path, tmp_path: Path
) -> None:
    config = json.loads((toy / "config.json").read_text())
    del config["rope_parameters"]
    config["rope_scaling"] = {"rope_type": "frequency_factors", "factors": [1.0] * 8}
    (toy / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="states rotary frequencies by number"):
        float_folder(str(toy), home=tmp_path)


def test_a_damaged_file_is_named(toy: Path, tmp_path: Path) -> None:
    (toy / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(CorruptModel, match=r"model\.safetensors"):
        float_folder(str(toy), home=tmp_path)


def test_the_target_has_the_hash_and_the_vocabulary_that_its_answers_are_kept_with(
    toy: Path,
) -> None:
    found = find_target(toy_settings(toy), live=True)
    with toy_target(toy) as (target, _):
        info = asyncio.run(target.describe())
    assert (found.model_id, found.model_hash) == (info.model_id, info.model_hash)
    assert (found.vocab_fingerprint, found.dtype) == (info.vocab_fingerprint, info.dtype)
    assert found.folder == found.live_folder == toy


@pytest.mark.parametrize("spec", ["table:a.json", "grpc://host:1", "grpcs://host:1"])
def test_a_target_without_weights_here_is_refused(toy: Path, spec: str) -> None:
    settings = toy_settings(toy).model_copy(deep=True)
    engine = settings.engine.model_copy(update={"target": spec})
    with pytest.raises(ConfigError, match="has no weights here"):
        find_target(settings.model_copy(update={"engine": engine}))
