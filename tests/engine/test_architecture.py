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
GEMMA2 = {"model_type": "gemma2"}
GEMMA3 = {"model_type": "gemma3_text"}


def read(**changes: Any) -> ModelConfig:
    return ModelConfig.from_hf({**BASE, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma"}, "model_type 'gemma'.*llama, mistral, qwen2"),
        ({"model_type": "gemma3", "text_config": {}}, "model_type 'gemma3'.*text part alone"),
        ({"model_type": None}, "model_type None"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'.*silu"),
        ({"hidden_act": None}, "hidden_act None"),
        ({**GEMMA2, "hidden_activation": "gelu"}, "hidden_activation 'gelu'.*gelu_pytorch_tanh"),
        ({**GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ({**GEMMA3, "attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method 'gptq'"),
        ({**MISTRAL, "attention_bias": True}, "attention_bias True"),
        ({**QWEN, "mlp_bias": True}, "mlp_bias True"),
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
        ({**GEMMA2, "query_pre_attn_scalar": 0}, "query_pre_attn_scalar 0"),
        ({**GEMMA2, "final_logit_softcapping": -1}, "final_logit_softcapping -1"),
    ],
)
def test_impossible_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptModel, match=message):
        read(**changes)


def test_biases_follow_the_family() -> None:
    qwen, llama = read(**QWEN), read(attention_bias=True)
    assert (qwen.qkv_bias, qwen.o_bias, qwen.mlp_bias) == (True, False, False)
    assert (llama.qkv_bias, llama.o_bias, llama.mlp_bias) == (True, True, False)


def test_what_gemma_does_otherwise_is_said_in_numbers() -> None:
    llama, gemma2, gemma3 = read(head_dim=32), read(**GEMMA2), read(**GEMMA3, rms_norm_eps=1e-5)
    assert (llama.attention_scale, llama.embedding_scale) == (32**-0.5, 1.0)
    assert (llama.attention_softcap, llama.logit_softcap) == (None, None)
    assert (llama.activation, llama.post_norms, llama.qk_norm) == ("silu", False, False)
    assert (gemma2.attention_scale, gemma2.embedding_scale) == (1 / 16, 8.0)
    assert (gemma2.attention_softcap, gemma2.logit_softcap) == (50.0, 30.0)
    assert (gemma2.activation, gemma2.post_norms, gemma2.qk_norm) == ("gelu_tanh", True, False)
    assert (gemma3.attention_softcap, gemma3.logit_softcap) == (None, None)
    assert (gemma3.post_norms, gemma3.qk_norm, gemma3.tied_head) == (True, True, True)


def test_a_softcap_may_be_switched_off() -> None:
    config = read(**GEMMA2, attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (config.attention_softcap, config.logit_softcap) == (None, None)


def test_missing_head_sizes_mean_what_the_family_says() -> None:
    sizes = [read(**kind).head_dim for kind in ({}, QWEN, {"model_type": "qwen3"}, GEMMA2)]
    assert sizes == [16, 16, 128, 256]


def test_a_model_cut_short_keeps_the_windows_of_its_layers() -> None:
    config = read(**GEMMA2, sliding_window=8)
    assert config.windows == (8, None, 8, None)
    assert config.with_layers(3).windows == (8, None, 8)


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
