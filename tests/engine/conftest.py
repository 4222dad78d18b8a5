"""Tiny random models of every family, beside the reference implementation of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quantization
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from outrider.engine import Decoder, load_model

_SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_PHI3: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 2}
_GEMMA: dict[str, Any] = {"head_dim": 32, "query_pre_attn_scalar": 20, "sliding_window": 5}
_CONFIGS: dict[str, Callable[[], Any]] = {
    "llama-tied": lambda: LlamaConfig(**_SHAPE, tie_word_embeddings=True),
    "llama-biased": lambda: LlamaConfig(**_SHAPE, attention_bias=True, mlp_bias=True),
    "llama-llama3": lambda: LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3),
    "llama-linear": lambda: LlamaConfig(
        **_SHAPE, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}
    ),
    "mistral-window": lambda: MistralConfig(**_SHAPE, head_dim=32, sliding_window=7),
    "qwen2-untied": lambda: Qwen2Config(**_SHAPE, tie_word_embeddings=False),
    "qwen2-window": lambda: Qwen2Config(
        **_SHAPE, use_sliding_window=True, sliding_window=5, max_window_layers=0
    ),
    "qwen2-mixed": lambda: Qwen2Config(
        **_SHAPE, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3-tied": lambda: Qwen3Config(**_SHAPE, head_dim=32, tie_word_embeddings=True),
    "qwen3-biased": lambda: Qwen3Config(**_SHAPE, head_dim=24, attention_bias=True),
    "phi3-window": lambda: Phi3Config(**_SHAPE, **_PHI3, sliding_window=7),
    "phi3-partial": lambda: Phi3Config(
        **_SHAPE, **_PHI3, rope_parameters={"partial_rotary_factor": 0.75}
    ),
    "phi3-longrope": lambda: Phi3Config(
        **_SHAPE,
        **_PHI3,
        original_max_position_embeddings=128,
        rope_parameters={
            "rope_type": "longrope",
            "partial_rotary_factor": 0.5,
            "short_factor": [1.0, 1.1, 1.5, 2.5],
            "long_factor": [2.0, 4.0, 8.0, 16.0],
        },
    ),
    "gemma2": lambda: Gemma2Config(
        **_SHAPE, **_GEMMA, attn_logit_softcapping=3.0, final_logit_softcapping=4.0
    ),
    "gemma2-uncapped": lambda: Gemma2Config(
        **_SHAPE,
        **_GEMMA,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        tie_word_embeddings=False,
        attention_bias=True,
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **_SHAPE, **_GEMMA, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
    "gemma3-linear": lambda: Gemma3TextConfig(
        **_SHAPE,
        **_GEMMA,
        sliding_window_pattern=2,
        final_logit_softcapping=4.0,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
}


_GGUF_SHAPE: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 2**-17,
}
_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
}
_GGUF_GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GGUF_KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 32}),
    "phi3": (Phi3Config, {**_PHI3, "sliding_window": 5}),
    "gemma2": (Gemma2Config, {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 5}),
    "gemma3": (
        Gemma3TextConfig,
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 5,
            "num_hidden_layers": 6,
            "final_logit_softcapping": 20.0,
        },
    ),
}


@dataclass(frozen=True)
class Pair:
    """The same weights here and in transformers."""

    folder: Path
    decoder: Decoder
    reference: PreTrainedModel

    def expected(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits after each token, [N, V], float32."""
        return reference_logits(self.reference, ids)


def reference_logits(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([list(ids)])).logits[0].float()


def save_random(config: Any, folder: Path, **options: Any) -> None:
    """Save a model whose every parameter, biases and norms included, is random."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder, **options)


def load_reference(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    ).eval()


def load_pair(folder: Path) -> Pair:
    decoder = load_model(folder, dtype=torch.float32, device=torch.device("cpu"))
    return Pair(folder, decoder, load_reference(folder))


@pytest.fixture(scope="session", params=sorted(_CONFIGS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """One model of each family and feature."""
    folder = tmp_path_factory.mktemp(request.param)
    save_random(_CONFIGS[request.param](), folder)
    return load_pair(folder)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """One tiny llama model, where the family does not matter."""
    folder = tmp_path_factory.mktemp("llama")
    save_random(_CONFIGS["llama-biased"](), folder)
    return load_pair(folder)


@pytest.fixture
def save_model() -> Callable[..., None]:
    return save_random


@pytest.fixture
def reference_of() -> Callable[..., PreTrainedModel]:
    return load_reference


@pytest.fixture
def pair_of() -> Callable[[Path], Pair]:
    return load_pair


@pytest.fixture
def tokens() -> list[int]:
    """Forty ids within the tiny vocabulary."""
    return torch.randint(0, 97, (40,), generator=torch.Generator().manual_seed(3)).tolist()


def gguf_name(name: str, architecture: str) -> str:
    names = _GGUF_NAMES | (_GGUF_GEMMA_NAMES if architecture.startswith("gemma") else {})
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, index, inner = stem.split(".", 3)
        return f"blk.{index}.{names[inner]}.{kind}"
    return f"{names[stem]}.{kind}"


def add_own_metadata(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    """What the family's converter writes beside the keys that all files have."""
    rope = config.rope_parameters
    if architecture not in ("llama", "qwen2"):
        writer.add_key_length(getattr(config, "head_dim", 64))
        writer.add_value_length(getattr(config, "head_dim", 64))
    if architecture in ("phi3", "gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window or 0)
    match architecture:
        case "phi3":
            writer.add_rope_dimension_count(int(64 * rope["partial_rotary_factor"]))
        case "gemma2":
            writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
        case "gemma3":
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
            rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])


def quantize(weight: np.ndarray, quantization: Quantization) -> np.ndarray:
    """Rows in the quantization; K-quants, which the library cannot write, are random."""
    if quantization not in (Quantization.Q4_K, Quantization.Q6_K):
        return gguf.quants.quantize(weight, quantization)
    random = np.random.default_rng(weight.size)
    _, size = gguf.GGML_QUANT_SIZES[quantization]
    blocks = random.integers(0, 256, (weight.size // 256, size), dtype=np.uint8)
    # The half-precision scales stand first in Q4_K and last in Q6_K.
    scales = slice(0, 4) if quantization == Quantization.Q4_K else slice(size - 2, size)
    count = (scales.stop - scales.start) // 2
    values = np.full((len(blocks), count), 2e-5, dtype=np.float16)
    blocks[:, scales] = values.view(np.uint8)
    return blocks.reshape(weight.shape[0], -1)


def llama_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """From pairs (i, i + half) to pairs (2i, 2i + 1), as llama files have them."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def random_model(architecture: str, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(11)
    kind, own = _GGUF_KINDS[architecture]
    config = kind(**{**_GGUF_SHAPE, **own, **changes}, initializer_range=0.08)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def write_gguf_file(
    path: Path,
    model: PreTrainedModel,
    architecture: str,
    quantization: Quantization = Quantization.F32,
    extra: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> None:
    """Write the model, and give it the weights that the file's numbers stand for."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    add_own_metadata(writer, config, architecture)
    writer.add_token_list([f"token {index}" for index in range(48)])
    writer.add_token_types([1] * 48)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    extra(writer)
    for name, parameter in model.named_parameters():
        weight = parameter.detach().numpy()
        used = Quantization.F32 if weight.ndim == 1 else quantization
        data = quantize(weight, used)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(np.array(gguf.quants.dequantize(data, used))))
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads
            data = llama_order(data, heads if "q_proj" in name else config.num_key_value_heads)
        if architecture.startswith("gemma") and weight.ndim == 1:
            data = data + np.float32(1)
        writer.add_tensor(gguf_name(name, architecture), np.ascontiguousarray(data), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def make_model() -> Callable[..., PreTrainedModel]:
    """A random model of an architecture as GGUF names it."""
    return random_model


@pytest.fixture
def write_gguf() -> Callable[..., None]:
    return write_gguf_file


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole file in Q8_0, to look at or to damage."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_gguf_file(path, random_model("llama"), "llama", Quantization.Q8_0)
    return path
