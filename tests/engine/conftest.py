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
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
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


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, index, inner = stem.split(".", 3)
        return f"blk.{index}.{_GGUF_NAMES[inner]}.{kind}"
    return f"{_GGUF_NAMES[stem]}.{kind}"


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
    kind = {"llama": LlamaConfig, "qwen2": Qwen2Config}[architecture]
    config = kind(**{**_GGUF_SHAPE, **changes}, initializer_range=0.08)
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
    writer.add_rope_freq_base(10000.0)
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
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(data), raw_dtype=used)
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
