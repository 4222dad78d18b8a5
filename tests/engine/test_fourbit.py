"""Weights of 4 bits against the library that defines the formats, and through a conversion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quantization
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from outrider.engine import Chunk, convert_gguf, load_model, read_config
from outrider.engine.fourbit import FourBit, is_four_bit, unpack_four_bit
from outrider.engine.kernels import Threads
from outrider.engine.quantize import load_quantized
from outrider.errors import CorruptModel, UnsupportedModel
from tests.engine.rounding import rounded_logits

IDS = [1, 5, 40, 2, 17, 33, 8, 8, 21]
FORMATS = [Quantization.Q4_0, Quantization.Q4_1, Quantization.Q4_K]


def raw_rows(quantization: Quantization, rows: int = 6, columns: int = 512) -> np.ndarray:
    """Random blocks with sensible scales."""
    random = np.random.default_rng(5)
    block, size = gguf.GGML_QUANT_SIZES[quantization]
    blocks = random.integers(0, 256, (rows * columns // block, size), dtype=np.uint8)
    halves = 1 if quantization == Quantization.Q4_0 else 2
    scales = random.normal(0, 0.02, (len(blocks), halves)).astype(np.float16)
    blocks[:, : 2 * halves] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


def weight_of(quantization: Quantization, **shape: int) -> tuple[FourBit, torch.Tensor]:
    """A weight, and what the library makes of the same bytes."""
    raw = raw_rows(quantization, **shape)
    arrays = unpack_four_bit(raw, quantization)
    parts = [torch.from_numpy(np.ascontiguousarray(part)) for part in arrays]
    return FourBit(*parts), torch.from_numpy(gguf.quants.dequantize(raw, quantization))


@pytest.mark.parametrize("quantization", [Quantization.Q4_0, Quantization.Q4_1])
def test_plain_formats_are_taken_over_exactly(quantization: Quantization) -> None:
    weight, expected = weight_of(quantization)
    assert weight.shape == (6, 512)
    assert torch.equal(weight.floats(), expected)


def test_steps_and_offsets_of_q4_k_are_rounded_to_half_precision() -> None:
    weight, expected = weight_of(Quantization.Q4_K)
    steps = weight.steps.float().abs().repeat_interleave(32, dim=1)
    offsets = weight.offsets.float().abs().repeat_interleave(32, dim=1)
    # Half of the last place: 2^-11 of each number, or of the least normal one.
    bound = (15 * steps.clamp(2**-14) + offsets.clamp(2**-14)) * 2**-11
    difference = (weight.floats() - expected).abs()
    assert (difference <= bound * 1.001).all()
    assert difference.max() > 0
    assert expected.std() > 100 * difference.max()


@pytest.mark.parametrize("quantization", FORMATS)
def test_codes_are_of_4_bits_and_all_occur(quantization: Quantization) -> None:
    weight, _ = weight_of(quantization)
    assert weight.unpacked().unique().tolist() == list(range(16))
    assert weight.codes.dtype == torch.uint8
    assert weight.steps.dtype == weight.offsets.dtype == torch.float16
    assert weight.steps.shape == weight.offsets.shape == (6, 16)


def test_joined_weights_are_one_below_the_other() -> None:
    (first, above), (second, below) = (weight_of(kind) for kind in FORMATS[:2])
    joined = FourBit.join([first, second])
    assert joined.shape == (12, 512)
    assert torch.equal(joined.floats(), torch.cat([above, below]))


def test_rows_are_picked_in_any_order() -> None:
    weight, expected = weight_of(Quantization.Q4_1)
    order = torch.tensor([5, 0, 3, 3])
    assert torch.equal(weight[order].floats(), expected[order])


def test_no_other_format_counts_as_4_bits() -> None:
    assert [kind for kind in Quantization if is_four_bit(kind)] == FORMATS


@pytest.fixture(params=FORMATS, ids=lambda value: value.name)
def converted(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    make_model: Callable[..., Any],
    write_gguf: Callable[..., Any],
) -> tuple[Path, Any]:
    """A folder with 4-bit weights as they were, and the model that they stand for."""
    model = make_model("llama")
    write_gguf(tmp_path / "model.gguf", model, "llama", request.param)
    (tmp_path / "folder").mkdir()
    convert_gguf(
        tmp_path / "model.gguf", tmp_path / "folder", dtype=torch.float16, keep_four_bit=True
    )
    return tmp_path / "folder", model


def logits(decoder: Any) -> torch.Tensor:
    cache = decoder.new_cache(num_slots=1, max_length=32)
    found: torch.Tensor = decoder.forward([Chunk(cache.allocate(), IDS, len(IDS))], cache)[0]
    return found


def test_a_converted_file_keeps_its_4_bits_and_runs_in_them(converted: tuple[Path, Any]) -> None:
    folder, _ = converted
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = set(file.keys())
        codes = file.get_tensor("model.layers.0.mlp.down_proj.codes")
    assert (codes.dtype, codes.shape) == (torch.uint8, (256, 256))
    for stem in ("lm_head", "model.embed_tokens", "model.layers.0.mlp.up_proj"):
        assert {f"{stem}.codes", f"{stem}.steps", f"{stem}.offsets"} < names
    assert all("norm" in name for name in names if name.endswith(".weight"))
    found = logits(load_quantized(folder, threads=Threads(1)))
    expected = rounded_logits(folder, IDS)
    assert (found - expected).square().mean().sqrt() < 0.02 * expected.std()


def test_the_same_folder_runs_in_float32_and_is_near_to_the_file(
    converted: tuple[Path, Any],
) -> None:
    folder, model = converted
    found = logits(load_model(folder, dtype=torch.float32, device=torch.device("cpu")))
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
    assert (found - expected).abs().max() < 0.01 * expected.std()
    rounded = logits(load_quantized(folder, threads=Threads(1)))
    assert (rounded - expected).square().mean().sqrt() < 0.1 * expected.std()


def test_a_tied_embedding_of_4_bits_is_the_head_too(
    tmp_path: Path, make_model: Callable[..., Any], write_gguf: Callable[..., Any]
) -> None:
    model = make_model("qwen2", tie_word_embeddings=True)
    write_gguf(tmp_path / "model.gguf", model, "qwen2", Quantization.Q4_1)
    convert_gguf(tmp_path / "model.gguf", tmp_path, dtype=torch.float16, keep_four_bit=True)
    assert not any("lm_head" in name for name in load_file(tmp_path / "model.safetensors"))
    found = logits(load_model(tmp_path, dtype=torch.float32, device=torch.device("cpu")))
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
    assert (found - expected).abs().max() < 0.01 * expected.std()
    found = logits(load_quantized(tmp_path, threads=Threads(1)))
    expected = rounded_logits(tmp_path, IDS)
    assert (found - expected).square().mean().sqrt() < 0.02 * expected.std()


@pytest.mark.parametrize(
    "stem", ["model.layers.0.self_attn.v_proj.", "model.embed_tokens.", "lm_head."]
)
def test_a_checkpoint_may_mix_4_bits_and_floats(
    tmp_path: Path, make_model: Callable[..., Any], write_gguf: Callable[..., Any], stem: str
) -> None:
    write_gguf(tmp_path / "model.gguf", make_model("qwen2"), "qwen2", Quantization.Q4_1)
    convert_gguf(tmp_path / "model.gguf", tmp_path, dtype=torch.float32, keep_four_bit=True)
    before = logits(load_model(tmp_path, dtype=torch.float32, device=torch.device("cpu")))
    weights = load_file(tmp_path / "model.safetensors")
    weight = FourBit(*(weights.pop(stem + part) for part in ("codes", "steps", "offsets")))
    save_file(weights | {stem + "weight": weight.floats()}, tmp_path / "model.safetensors")
    after = logits(load_model(tmp_path, dtype=torch.float32, device=torch.device("cpu")))
    assert torch.equal(after, before)
    found = logits(load_quantized(tmp_path, threads=Threads(1)))
    expected = rounded_logits(tmp_path, IDS)
    assert (found - expected).square().mean().sqrt() < 0.02 * expected.std()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda w, s: w.pop(s + "steps"), CorruptModel, "steps is missing"),
        (lambda w, s: w.update({s + "steps": w[s + "steps"][:, :1]}), CorruptModel, "has shape"),
        (
            lambda w, s: w.update({s + "codes": w[s + "codes"].half()}),
            UnsupportedModel,
            "stored as F16",
        ),
    ],
)
def test_a_damaged_4_bit_weight_is_refused_by_name(
    tmp_path: Path,
    make_model: Callable[..., Any],
    write_gguf: Callable[..., Any],
    change: Callable[[dict[str, torch.Tensor], str], Any],
    error: type[Exception],
    message: str,
) -> None:
    write_gguf(tmp_path / "model.gguf", make_model("llama"), "llama", Quantization.Q4_0)
    convert_gguf(tmp_path / "model.gguf", tmp_path, dtype=torch.float16, keep_four_bit=True)
    weights = load_file(tmp_path / "model.safetensors")
    change(weights, "model.layers.1.mlp.down_proj.")
    save_file(
        {name: part.contiguous() for name, part in weights.items()}, tmp_path / "model.safetensors"
    )
    with pytest.raises(error, match=rf"model\.layers\.1\.mlp\.down_proj\..*{message}"):
        load_quantized(tmp_path, threads=Threads(1))


def test_rows_that_are_no_whole_groups_are_refused(
    tmp_path: Path, save_model: Callable[..., None]
) -> None:
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=72,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    save_model(config, tmp_path)
    assert read_config(tmp_path).hidden_size == 72
    weights = load_file(tmp_path / "model.safetensors")
    stem = "model.layers.0.self_attn.q_proj."
    weights.pop(stem + "weight")
    weights[stem + "codes"] = torch.zeros(64, 36, dtype=torch.uint8)
    weights[stem + "steps"] = weights[stem + "offsets"] = torch.zeros(64, 2).half()
    save_file(
        {name: part.clone() for name, part in weights.items()}, tmp_path / "model.safetensors"
    )
    with pytest.raises(CorruptModel, match="rows of 72 weights are no whole groups of 32"):
        load_quantized(tmp_path, threads=Threads(1))
