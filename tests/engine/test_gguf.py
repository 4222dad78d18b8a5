from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quantization
from safetensors import safe_open
from transformers import PreTrainedModel

from outrider.engine import Chunk, convert_gguf, load_model, read_config
from outrider.errors import CorruptModel, FetchFailed, UnknownModel, UnsupportedModel

IDS = [1, 5, 40, 2, 17, 33, 8, 8, 21]
QUANTIZATIONS = [
    Quantization.F32,
    Quantization.F16,
    Quantization.BF16,
    Quantization.Q8_0,
    Quantization.Q4_0,
    Quantization.Q4_1,
    Quantization.Q5_1,
    Quantization.Q4_K,
    Quantization.Q6_K,
]


def converted_logits(source: Path, folder: Path) -> torch.Tensor:
    folder.mkdir()
    convert_gguf(source, folder, dtype=torch.float32)
    decoder = load_model(folder, dtype=torch.float32, device=torch.device("cpu"))
    cache = decoder.new_cache(num_slots=1, max_length=32)
    return decoder.forward([Chunk(cache.allocate(), IDS, len(IDS))], cache)[0]


def expected_logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([IDS])).logits[0]


def longrope(writer: gguf.GGUFWriter, *, short: bool = True, original: int = 64) -> None:
    if short:
        writer.add_tensor("rope_factors_short.weight", np.linspace(1, 4, 32, dtype=np.float32))
    writer.add_tensor("rope_factors_long.weight", np.linspace(8, 16, 32, dtype=np.float32))
    writer.add_rope_scaling_attn_factors(1.25)
    if original:
        writer.add_rope_scaling_orig_ctx_len(original)


@pytest.mark.parametrize("quantization", QUANTIZATIONS, ids=lambda value: value.name)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_converted_file_gets_the_logits_of_its_dequantized_weights(
    tmp_path: Path,
    architecture: str,
    quantization: Quantization,
    make_model: Callable[..., Any],
    write_gguf: Callable[..., Any],
) -> None:
    model = make_model(architecture)
    write_gguf(tmp_path / "model.gguf", model, architecture, quantization)
    found = converted_logits(tmp_path / "model.gguf", tmp_path / "folder")
    expected = expected_logits(model)
    assert expected.std() > 0.05
    assert (found - expected).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("qwen3", {"tie_word_embeddings": True}),
        ("phi3", {}),
        ("phi3", {"rope_parameters": {"partial_rotary_factor": 0.75}, "sliding_window": None}),
        ("gemma2", {}),
        ("gemma2", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
        ("gemma3", {}),
    ],
    ids=str,
)
def test_a_converted_file_of_any_family_gets_the_logits_of_its_weights(
    tmp_path: Path,
    architecture: str,
    changes: dict[str, Any],
    make_model: Callable[..., Any],
    write_gguf: Callable[..., Any],
) -> None:
    model = make_model(architecture, **changes)
    write_gguf(tmp_path / "model.gguf", model, architecture, Quantization.Q8_0)
    found = converted_logits(tmp_path / "model.gguf", tmp_path / "folder")
    expected = expected_logits(model)
    assert expected.std() > 0.05
    assert (found - expected).abs().max() < 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 32},
    ],
    ids=str,
)
def test_tied_heads_biases_and_narrow_heads_survive_conversion(
    tmp_path: Path,
    changes: dict[str, Any],
    make_model: Callable[..., Any],
    write_gguf: Callable[..., Any],
) -> None:
    model = make_model("llama", **changes)
    head_dim = changes.get("head_dim", 64)
    write_gguf(
        tmp_path / "model.gguf",
        model,
        "llama",
        extra=lambda writer: (
            writer.add_key_length(head_dim),
            writer.add_value_length(head_dim),
            writer.add_rope_dimension_count(head_dim),
        ),
    )
    found = converted_logits(tmp_path / "model.gguf", tmp_path / "folder")
    assert (found - expected_logits(model)).abs().max() < 1e-3
    tied = read_config(tmp_path / "folder").tied_head
    assert tied is changes.get("tie_word_embeddings", False)


def test_linear_rope_scaling_survives_conversion(
    tmp_path: Path, make_model: Callable[..., Any], write_gguf: Callable[..., Any]
) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    model = make_model("llama", rope_parameters=scaling)

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    write_gguf(tmp_path / "model.gguf", model, "llama", extra=extra)
    found = converted_logits(tmp_path / "model.gguf", tmp_path / "folder")
    assert (found - expected_logits(model)).abs().max() < 1e-3


def test_frequency_factors_are_llama3_scaling_in_another_form(
    tmp_path: Path, make_model: Callable[..., Any], write_gguf: Callable[..., Any]
) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    model = make_model("llama", rope_parameters=scaling)
    plain = 10000.0 ** -(torch.arange(0, 64, 2) / 64)
    factors = (plain / model.model.rotary_emb.inv_freq).float().numpy()
    assert factors.max() > 7.9

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", factors)

    write_gguf(tmp_path / "model.gguf", model, "llama", extra=extra)
    found = converted_logits(tmp_path / "model.gguf", tmp_path / "folder")
    assert (found - expected_logits(model)).abs().max() < 1e-3


def test_the_converted_config_says_what_the_metadata_said(small: Path, tmp_path: Path) -> None:
    convert_gguf(small, tmp_path, dtype=torch.float32)
    config = read_config(tmp_path)
    assert config.context_length == 128
    assert config.vocab_size == 48
    assert config.eos_token_ids == {2}
    assert config.bos_token_id == 1
    assert config.rms_norm_eps == 2**-17


def test_every_end_of_turn_token_ends_an_output(
    tmp_path: Path, make_model: Callable[..., Any], write_gguf: Callable[..., Any]
) -> None:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_eot_token_id(7)
        writer.add_eom_token_id(9)

    write_gguf(tmp_path / "model.gguf", make_model("llama"), "llama", extra=extra)
    convert_gguf(tmp_path / "model.gguf", tmp_path, dtype=torch.float32)
    assert read_config(tmp_path).eos_token_ids == {2, 7, 9}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_smaller_dtypes_are_the_rounded_float32(
    small: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    for name, wanted in (("exact", torch.float32), ("rounded", dtype)):
        (tmp_path / name).mkdir()
        convert_gguf(small, tmp_path / name, dtype=wanted)
    with (
        safe_open(tmp_path / "exact" / "model.safetensors", "pt") as exact,
        safe_open(tmp_path / "rounded" / "model.safetensors", "pt") as rounded,
    ):
        assert set(exact.keys()) == set(rounded.keys())
        for name in exact.keys():  # noqa: SIM118 - the handle is no mapping
            assert torch.equal(rounded.get_tensor(name), exact.get_tensor(name).to(dtype))


def test_large_tensors_are_converted_in_blocks_of_rows(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("whole", "blocks"):
        (tmp_path / name).mkdir()
        convert_gguf(small, tmp_path / name, dtype=torch.float32)
        monkeypatch.setattr("outrider.engine.gguf._BLOCK_ELEMENTS", 1000)
    whole, blocks = (tmp_path / name / "model.safetensors" for name in ("whole", "blocks"))
    assert whole.read_bytes() == blocks.read_bytes()


def test_progress_counts_up_to_the_whole(small: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert_gguf(small, tmp_path, dtype=torch.float32, progress=lambda *step: seen.append(step))
    done, total = zip(*seen, strict=True)
    assert list(done) == sorted(done)
    assert len(set(total)) == 1
    assert done[-1] == total[0]
    assert (tmp_path / "model.safetensors").stat().st_size > total[0]


def test_a_dtype_that_cannot_be_written_is_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not torch.int8"):
        convert_gguf(small, tmp_path, dtype=torch.int8)


def test_a_missing_file_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"none.gguf cannot be opened"):
        convert_gguf(tmp_path / "none.gguf", tmp_path, dtype=torch.float32)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "gemma")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=r"general.architecture 'gemma'.*llama, qwen2"):
        convert_gguf(tmp_path / "model.gguf", tmp_path, dtype=torch.float32)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (lambda w: w.add_expert_count(8), "llama.expert_count 8"),
        (lambda w: w.add_logit_scale(0.5), "llama.logit_scale 0.5"),
        (lambda w: w.add_rope_dimension_count(32), "rope.dimension_count 32"),
        (
            lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
            "rope.scaling.type .yarn",
        ),
        (lambda w: w.add_uint16("split.count", 3), "one of 3 parts"),
        (lambda w: w.add_tensor("blk.0.attn_q_norm.weight", np.ones(4, "f4")), "attn_q_norm"),
        (lambda w: w.add_tensor("blk.0.attn_qkv.weight", np.ones(4, "f4")), "attn_qkv"),
        (lambda w: w.add_attn_logit_softcapping(50.0), "llama.attn_logit_softcapping 50.0"),
        (
            lambda w: w.add_tensor("rope_factors_long.weight", np.ones(32, "f4")),
            "tensor rope_factors_long.weight is not supported",
        ),
        (lambda w: w.add_tensor("blk.9.attn_norm.weight", np.ones(256, "f4")), "blk.9.attn_norm"),
    ],
)
def test_features_that_would_be_ignored_are_refused_by_name(
    tmp_path: Path,
    extra: Callable[[gguf.GGUFWriter], None],
    message: str,
    make_model: Callable[..., Any],
    write_gguf: Callable[..., Any],
) -> None:
    write_gguf(tmp_path / "model.gguf", make_model("llama"), "llama", extra=extra)
    with pytest.raises(UnsupportedModel, match=message):
        convert_gguf(tmp_path / "model.gguf", tmp_path, dtype=torch.float32)


def test_a_sliding_window_makes_a_llama_file_a_mistral_model(
    tmp_path: Path, make_model: Callable[..., Any], write_gguf: Callable[..., Any]
) -> None:
    write_gguf(
        tmp_path / "model.gguf",
        make_model("llama"),
        "llama",
        extra=lambda writer: writer.add_sliding_window(5),
    )
    convert_gguf(tmp_path / "model.gguf", tmp_path, dtype=torch.float32)
    config = read_config(tmp_path)
    assert (config.family, config.windows) == ("mistral", (5, 5))


def test_short_and_long_frequency_factors_make_a_longrope_model(
    tmp_path: Path, make_model: Callable[..., Any], write_gguf: Callable[..., Any]
) -> None:
    scaling = {
        "rope_type": "longrope",
        "short_factor": np.linspace(1, 4, 32, dtype=np.float32).tolist(),
        "long_factor": np.linspace(8, 16, 32, dtype=np.float32).tolist(),
        "attention_factor": 1.25,
    }
    model = make_model("phi3", rope_parameters=scaling, original_max_position_embeddings=64)
    write_gguf(tmp_path / "model.gguf", model, "phi3", extra=longrope)
    found = converted_logits(tmp_path / "model.gguf", tmp_path / "folder")
    assert (found - expected_logits(model)).abs().max() < 1e-3
    assert read_config(tmp_path / "folder").context_length == 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"short": False}, "there is no tensor rope_factors_short.weight"),
        ({"original": 0}, "original_max_position_embeddings None is not a positive number"),
    ],
)
def test_longrope_that_lacks_something_is_corrupt(
    tmp_path: Path,
    options: dict[str, Any],
    message: str,
    make_model: Callable[..., Any],
    write_gguf: Callable[..., Any],
) -> None:
    write_gguf(
        tmp_path / "model.gguf",
        make_model("phi3"),
        "phi3",
        extra=lambda writer: longrope(writer, **options),
    )
    with pytest.raises(CorruptModel, match=message):
        convert_gguf(tmp_path / "model.gguf", tmp_path, dtype=torch.float32)


@pytest.mark.parametrize(("layers", "scale"), [(2, 32**-0.5), (46, 64**-0.5)])
def test_the_largest_gemma_scales_its_attention_by_its_hidden_size(
    tmp_path: Path,
    layers: int,
    scale: float,
    make_model: Callable[..., Any],
    write_gguf: Callable[..., Any],
) -> None:
    model = make_model("gemma2", num_hidden_layers=layers, intermediate_size=32)
    write_gguf(tmp_path / "model.gguf", model, "gemma2")
    convert_gguf(tmp_path / "model.gguf", tmp_path, dtype=torch.float32)
    assert read_config(tmp_path).attention_scale == scale


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_folder_that_cannot_be_written_is_a_failed_fetch(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(code, "no luck")

    monkeypatch.setattr("outrider.engine.gguf.write_safetensors", fail)
    remedy = "free some disk space" if code == errno.ENOSPC else "may be written"
    with pytest.raises(FetchFailed, match=remedy):
        convert_gguf(small, tmp_path, dtype=torch.float32)
    assert not (tmp_path / "config.json").exists()


def test_the_written_config_is_plain_json_that_names_its_dtype(small: Path, tmp_path: Path) -> None:
    convert_gguf(small, tmp_path, dtype=torch.bfloat16)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
