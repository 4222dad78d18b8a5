from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from outrider.engine import Chunk, Decoder, load_model
from outrider.errors import CorruptModel, UnknownModel, UnsupportedModel

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(llama: Any, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(llama.folder, tmp_path / "model"))


def load(folder: Path) -> Decoder:
    return load_model(folder, dtype=torch.float32, device=torch.device("cpu"))


def logits(decoder: Decoder) -> torch.Tensor:
    cache = decoder.new_cache(num_slots=1, max_length=8)
    return decoder.forward([Chunk(cache.allocate(), [1, 2, 3], 3)], cache)[0]


def change(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_sharded_model_is_the_same_model(tmp_path: Path, save_model: Callable[..., None]) -> None:
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
    )
    save_model(config, tmp_path / "whole")
    save_model(config, tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    assert torch.equal(logits(load(tmp_path / "whole")), logits(load(tmp_path / "shards")))


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change(folder, **{UP: None})
    with pytest.raises(CorruptModel, match=f"tensor {UP} is missing from {folder}"):
        load(folder)


def test_a_misshapen_tensor_is_named_with_its_file(folder: Path) -> None:
    change(folder, **{UP: torch.zeros(96, 63)})
    with pytest.raises(CorruptModel, match=rf"model.safetensors: tensor {UP} .*\[96, 63\]"):
        load(folder)


def test_a_tensor_of_whole_numbers_is_refused(folder: Path) -> None:
    change(folder, **{UP: torch.zeros(96, 64, dtype=torch.int8)})
    with pytest.raises(UnsupportedModel, match=f"tensor {UP} is stored as I8"):
        load(folder)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_norm.weight", "vision.weight"])
def test_a_tensor_that_would_be_ignored_is_refused(folder: Path, name: str) -> None:
    change(folder, **{name: torch.zeros(4)})
    with pytest.raises(UnsupportedModel, match=f"tensor .{name}. is no part of a llama model"):
        load(folder)


def test_frequencies_that_old_checkpoints_carry_are_no_obstacle(folder: Path) -> None:
    before = logits(load(folder))
    change(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    assert torch.equal(logits(load(folder)), before)


@pytest.mark.parametrize("length", [0, 5, 300, 60_000])
def test_a_truncated_file_is_corrupt(folder: Path, length: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CorruptModel, match=r"model.safetensors is not a whole safetensors file"):
        load(folder)


def test_an_own_head_counts_even_in_a_model_said_to_be_tied(folder: Path) -> None:
    before = logits(load(folder))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    assert torch.equal(logits(load(folder)), before)


def test_a_missing_head_is_an_error_unless_it_is_tied(folder: Path) -> None:
    change(folder, **{"lm_head.weight": None})
    with pytest.raises(CorruptModel, match=r"tensor lm_head.weight is missing"):
        load(folder)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="pickled weights only"):
        load(folder)


def test_a_folder_without_weights_is_unknown(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnknownModel, match=r"holds no model.safetensors"):
        load(folder)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "does not say which file"),
        ('{"weight_map": 3}', "does not say which file"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "'../model.safetensors'"),
        ('{"weight_map": {"a": "/model.safetensors"}}', "'/model.safetensors'"),
        ('{"weight_map": {"a": 3}}', "names the file 3"),
        ('{"weight_map": {"a": "part1.safetensors"}}', "lacks the weight file part1"),
    ],
)
def test_a_bad_index_is_corrupt(folder: Path, index: str, message: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CorruptModel, match=message):
        load(folder)


def test_a_loaded_model_does_not_depend_on_its_files_any_more(folder: Path) -> None:
    decoder = load(folder)
    before = logits(decoder)
    file = folder / "model.safetensors"
    with file.open("r+b") as stream:
        stream.write(b"\0" * file.stat().st_size)
    assert torch.equal(logits(decoder), before)
