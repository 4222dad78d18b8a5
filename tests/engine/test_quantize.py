"""Rounding weights to 8 bits, and loading models whose weights are of few bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.config import EngineSettings
from outrider.engine import Chunk, TorchDecoder, load_decoder, load_model
from outrider.engine.kernels import Threads, WeightMemory
from outrider.engine.quantize import load_quantized, round_int8
from outrider.engine.quantized import QuantizedDecoder
from outrider.errors import ConfigError, CorruptModel


def logits(decoder: Any, tokens: list[int]) -> torch.Tensor:
    cache = decoder.new_cache(num_slots=1, max_length=64)
    found: torch.Tensor = decoder.forward([Chunk(cache.allocate(), tokens, len(tokens))], cache)[0]
    return found


def test_weights_are_rounded_to_the_nearest_of_255_steps() -> None:
    weight = torch.randn(700, 500, generator=torch.Generator().manual_seed(0))
    codes, scale = round_int8(weight)
    assert codes.dtype == torch.int8
    assert scale.dtype == torch.float32
    assert codes.abs().amax(dim=1).tolist() == [127] * 700
    error = (codes * scale[:, None] - weight).abs()
    assert (error <= scale[:, None] * 0.50001).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_round_as_their_float32(dtype: torch.dtype) -> None:
    weight = torch.randn(9, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    for found, expected in zip(round_int8(weight), round_int8(weight.float()), strict=True):
        assert torch.equal(found, expected)


def test_the_sign_of_the_largest_weight_does_not_matter() -> None:
    codes, scale = round_int8(torch.tensor([[1.0, -2.0], [-1.0, 2.0], [-3.0, -1.0]]))
    assert codes.tolist() == [[64, -127], [-64, 127], [-127, -42]]
    assert torch.equal(scale, torch.tensor([2.0, 2.0, 3.0]) / 127)


def test_an_output_without_weights_stays_nothing() -> None:
    codes, scale = round_int8(torch.zeros(2, 5))
    assert not codes.any()
    assert not scale.any()


def test_int8_is_near_to_float32(pair: Any, tokens: list[int]) -> None:
    if pair.decoder.config.head_dim % 16:
        return
    found = logits(load_quantized(pair.folder, threads=Threads(1)), tokens)
    expected = pair.expected(tokens)
    assert (found - expected).square().mean().sqrt() < 0.15 * expected.std()


def test_a_configured_dtype_chooses_the_decoder(llama: Any, tokens: list[int]) -> None:
    settings = EngineSettings(threads=2)
    eight = load_decoder(llama.folder, settings, dtype="int8")
    assert isinstance(eight, QuantizedDecoder)
    assert eight.batch_invariant
    plain = load_decoder(llama.folder, settings, dtype="float32")
    assert isinstance(plain, TorchDecoder)
    assert not plain.batch_invariant
    assert torch.equal(logits(plain, tokens), logits(llama.decoder, tokens))


def test_models_that_take_turns_share_their_threads(llama: Any) -> None:
    settings = EngineSettings(threads=2)
    target = load_decoder(llama.folder, settings, dtype="int8")
    assert isinstance(target, QuantizedDecoder)
    draft = load_decoder(llama.folder, settings, dtype="int8", beside=target)
    other = load_decoder(llama.folder, settings, dtype="int8", beside=llama.decoder)
    assert isinstance(draft, QuantizedDecoder)
    assert isinstance(other, QuantizedDecoder)
    assert draft.threads is target.threads
    assert other.threads is not target.threads


def test_a_tied_embedding_is_read_out_of_the_head_and_takes_no_memory_of_its_own(
    llama: Any, tokens: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    take = WeightMemory.take

    def record(memory: WeightMemory, num_bytes: int) -> torch.Tensor:
        taken.append(num_bytes)
        return take(memory, num_bytes)

    monkeypatch.setattr(WeightMemory, "take", record)
    load_quantized(llama.folder, threads=Threads(1))
    own = sum(taken)
    taken.clear()
    weights = load_file(llama.folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((llama.folder / "config.json").read_text())
    load_quantized(tmp_path, threads=Threads(1))
    config = llama.decoder.config
    padded = -(-config.vocab_size // 16) * 16 * -(-config.hidden_size // 32) * 32
    assert own - sum(taken) == padded


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_few_bits_are_refused_off_the_cpu(llama: Any, dtype: str) -> None:
    settings = EngineSettings(device="cuda")
    with pytest.raises(ConfigError, match=f"dtype {dtype} runs on the CPU alone, not on .*'cuda'"):
        load_decoder(llama.folder, settings, dtype=dtype)


def test_a_tied_head_and_one_that_only_looks_so_give_the_same_bits(
    llama: Any, tokens: list[int], tmp_path: Path
) -> None:
    weights = load_file(llama.folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, tmp_path / "model.safetensors")
    config = (llama.folder / "config.json").read_text()
    (tmp_path / "config.json").write_text(config)
    found = logits(load_quantized(tmp_path, threads=Threads(1)), tokens)
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(CorruptModel, match=r"lm_head\.weight is missing"):
        load_quantized(tmp_path, threads=Threads(1))
    tied = config.replace('"tie_word_embeddings": false', '"tie_word_embeddings": true')
    (tmp_path / "config.json").write_text(tied)
    assert torch.equal(logits(load_quantized(tmp_path, threads=Threads(1)), tokens), found)
    expected = logits(load_model(tmp_path, dtype=torch.float32, device=torch.device("cpu")), tokens)
    assert (found - expected).square().mean().sqrt() < 0.15 * expected.std()
