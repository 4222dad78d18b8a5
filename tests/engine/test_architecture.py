from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.engine import ModelConfig, read_config
from outrider.errors import CorruptModel, UnknownModel, UnsupportedModel

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
QWEN = {"model_type": "qwen2"}
MISTRAL = {"model_type": "mistral"}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(**changes: Any) -> ModelConfig:
    return ModelConfig.from_hf({**BASE, **changes})


def test_old_and_new_rope_keys_mean_the_same() -> None:
    old = read(rope_theta=5e5, rope_scaling=LLAMA3)
    new = read(rope_parameters={**LLAMA3, "rope_theta": 5e5})
    assert old == new
    assert (new.rope.theta, new.rope.factor) == (5e5, 8.0)


def test_the_oldest_name_of_a_rope_variant_is_understood() -> None:
    assert read(rope_scaling={"type": "linear", "factor": 2.0}).rope.factor == 2.0


@pytest.mark.parametrize("name", ["dynamic", "yarn", "longrope", "su"])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_other_rope_variants_are_refused_by_name(name: str, key: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"rope_type '{name}' is not supported.*llama3"):
        read(**{key: {"rope_type": name, "factor": 2.0}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma2"}, "model_type 'gemma2'.*llama, mistral, qwen2"),
        ({"model_type": None}, "model_type None"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'.*silu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method 'gptq'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({**MISTRAL, "attention_bias": True}, "attention_bias True"),
        ({**QWEN, "mlp_bias": True}, "mlp_bias True"),
        (
            {**QWEN, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
            "max_window_layers 2 of 4 layers",
        ),
        (
            {**QWEN, "layer_types": ["full_attention", "sliding_attention"]},
            "layer_types .'full_attention', 'sliding_attention'",
        ),
        (
            {**MISTRAL, "sliding_window": None, "layer_types": ["sliding_attention"]},
            "layer_types .'sliding_attention'",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "full_attention"),
    ],
)
def test_what_the_engine_cannot_run_is_refused_by_name(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers 0"),
        ({"vocab_size": "many"}, "vocab_size 'many'"),
        ({"num_key_value_heads": 3}, "4 is no multiple of num_key_value_heads 3"),
        ({"num_key_value_heads": -2}, "num_key_value_heads -2"),
        ({"head_dim": 7}, "head_dim 7"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps 'tiny'"),
        ({"eos_token_id": "end"}, "eos_token_id 'end'"),
        ({"bos_token_id": "begin"}, "bos_token_id 'begin'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor None"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor 0"),
        ({"rope_scaling": "linear"}, "rope parameters 'linear'"),
        ({"rope_theta": "big"}, "rope_theta 'big'"),
        ({**MISTRAL, "sliding_window": 0}, "sliding_window 0"),
        (
            {"rope_scaling": {"rope_type": "frequency_factors", "factors": [1.0]}},
            "1 frequency factors for 8",
        ),
    ],
)
def test_impossible_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptModel, match=message):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"sliding_window": 8}, None),
        ({**MISTRAL, "sliding_window": 8}, 8),
        ({**MISTRAL, "sliding_window": None}, None),
        (MISTRAL, 4096),
        ({**QWEN, "sliding_window": 8}, None),
        ({**QWEN, "sliding_window": 8, "use_sliding_window": False}, None),
        (
            {**QWEN, "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0},
            8,
        ),
        (
            {**QWEN, "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 4},
            None,
        ),
        ({**QWEN, "layer_types": ["full_attention"] * 4}, None),
    ],
)
def test_a_sliding_window_counts_only_where_it_is_switched_on(
    changes: dict[str, Any], window: int | None
) -> None:
    assert read(**changes).sliding_window == window


def test_biases_follow_the_family() -> None:
    qwen, llama = read(**QWEN), read(attention_bias=True)
    assert (qwen.qkv_bias, qwen.o_bias, qwen.mlp_bias) == (True, False, False)
    assert (llama.qkv_bias, llama.o_bias, llama.mlp_bias) == (True, True, False)


@pytest.mark.parametrize(
    ("value", "expected"), [(None, set()), (2, {2}), ([2, 7], {2, 7}), ([], set())]
)
def test_end_tokens_may_be_none_one_or_many(value: Any, expected: set[int]) -> None:
    assert read(eos_token_id=value).eos_token_ids == expected


def test_missing_heads_mean_one_per_query_head() -> None:
    config = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
    assert ModelConfig.from_hf(config).num_kv_heads == 4
    assert read(num_key_value_heads=None).num_kv_heads == 4


def test_end_tokens_of_the_generation_config_count_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**BASE, "eos_token_id": 2}))
    assert read_config(tmp_path).eos_token_ids == {2}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert read_config(tmp_path).eos_token_ids == {2, 7}


def test_a_folder_without_a_config_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"holds no config.json"):
        read_config(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_config_that_is_no_json_object_is_corrupt(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CorruptModel, match=r"config.json"):
        read_config(tmp_path)
