"""A GGUF file's metadata, said in the words of a Hugging Face `config.json`."""

from __future__ import annotations

from typing import Any, Final

from outrider.engine.gguf_header import GGUFHeader, Scalar
from outrider.errors import CorruptModel, UnsupportedModel

__all__ = ["ROPE_FACTORS", "hf_config"]

ROPE_FACTORS: Final = "rope_freqs.weight"
"""The tensor that holds one divisor per rotary frequency, if a model has them."""

_SUPPORTED: Final = ("llama", "qwen2")
_CLASSES: Final = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
}
_END_TOKENS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
# Keys of an architecture that are used below, or that say nothing about the arithmetic. Any other
# that is not zero or false is refused, since it may.
_KNOWN: Final = frozenset(
    {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "vocab_size",
        "tensor_data_layout",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
    }
)


def hf_config(
    header: GGUFHeader, source: str, frequency_factors: list[float] | None
) -> dict[str, Any]:
    """The `config.json` of the model in the file called `source`.

    Args:
        frequency_factors: the contents of the tensor `rope_freqs.weight`, if there is one.

    Raises:
        CorruptModel: something is missing or impossible; names it.
        UnsupportedModel: an architecture or a feature not supported; names it.
    """
    return _Metadata(header, source).hf_config(frequency_factors)


class _Metadata:
    def __init__(self, header: GGUFHeader, source: str) -> None:
        self._header = header
        self._values = header.metadata
        self._source = source
        self._architecture = str(self._values.get("general.architecture", ""))

    def hf_config(self, frequency_factors: list[float] | None) -> dict[str, Any]:
        self._refuse_unknown()
        heads = self._integer("attention.head_count")
        hidden = self._integer("embedding_length")
        head_dim = self._integer("attention.key_length", default=hidden // heads)
        for key in ("attention.value_length", "rope.dimension_count"):
            if self._integer(key, default=head_dim) != head_dim:
                raise self._unsupported(f"{key} {self._get(key)} beside heads of {head_dim}")
        window = self._integer("attention.sliding_window", default=0)
        if window and self._architecture == "qwen2":
            raise self._unsupported(f"attention.sliding_window {window}")
        family = "mistral" if window else self._architecture
        config: dict[str, Any] = {
            "architectures": [_CLASSES[family]],
            "model_type": family,
            "hidden_act": "silu",
            "vocab_size": self._vocab_size(),
            "hidden_size": hidden,
            "intermediate_size": self._integer("feed_forward_length"),
            "num_hidden_layers": self._integer("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._integer("attention.head_count_kv", default=heads),
            "head_dim": head_dim,
            "rms_norm_eps": self._number("attention.layer_norm_rms_epsilon"),
            "max_position_embeddings": self._integer("context_length"),
            "rope_theta": self._number("rope.freq_base", default=10000.0),
            "rope_scaling": self._rope_scaling(frequency_factors),
            "tie_word_embeddings": "output.weight" not in self._header.tensors,
            "bos_token_id": self._token_id("bos_token_id"),
            "eos_token_id": self._end_tokens(),
        }
        if family == "llama":
            config["attention_bias"] = self._has_tensor("blk.0.attn_q.bias")
            config["mlp_bias"] = self._has_tensor("blk.0.ffn_up.bias")
        else:
            config["sliding_window"] = window or None
        return config

    def _refuse_unknown(self) -> None:
        if self._architecture not in _SUPPORTED:
            raise UnsupportedModel(
                f"{self._source}: general.architecture {self._architecture!r} is not supported;"
                f" the engine runs {', '.join(_SUPPORTED)}"
            )
        parts = self._values.get("split.count", 1)
        if parts not in (0, 1):
            raise UnsupportedModel(
                f"{self._source} is one of {parts} parts, which are not supported; merge them into"
                " one file"
            )
        prefix = f"{self._architecture}."
        for key, value in self._values.items():
            name = key.removeprefix(prefix)
            if name != key and name not in _KNOWN and value:
                raise self._unsupported(f"{name} {value!r}")

    def _rope_scaling(self, frequency_factors: list[float] | None) -> dict[str, Any] | None:
        factor = self._number("rope.scale_linear", default=1.0)
        factor = self._number("rope.scaling.factor", default=factor)
        # A factor without a type has always meant linear.
        scaling = self._get("rope.scaling.type")
        kind = ("linear" if factor != 1.0 else "none") if scaling is None else scaling
        if kind not in ("none", "linear"):
            raise self._unsupported(f"rope.scaling.type {kind!r}")
        linear = kind == "linear" and factor != 1.0
        if frequency_factors is None:
            return {"rope_type": "linear", "factor": factor} if linear else None
        if linear:
            raise self._unsupported(f"rope.scaling.type linear beside the tensor {ROPE_FACTORS}")
        return {"rope_type": "frequency_factors", "factors": frequency_factors}

    def _vocab_size(self) -> int:
        embedding = self._header.tensors.get("token_embd.weight")
        if embedding is None:
            raise self._corrupt("there is no tensor token_embd.weight")
        return embedding.shape[0]

    def _end_tokens(self) -> list[int] | None:
        found = [self._token_id(key) for key in _END_TOKENS]
        return sorted({token for token in found if token is not None}) or None

    def _token_id(self, key: str) -> int | None:
        value = self._values.get(f"tokenizer.ggml.{key}")
        return value if isinstance(value, int) else None

    def _has_tensor(self, name: str) -> bool:
        return name in self._header.tensors

    def _get(self, key: str) -> Scalar | list[Scalar] | None:
        return self._values.get(f"{self._architecture}.{key}")

    def _integer(self, key: str, *, default: int | None = None) -> int:
        value = self._get(key)
        if isinstance(value, list):
            raise self._unsupported(f"{key} that varies by layer")
        value = default if value is None else value
        if not isinstance(value, int) or value < (1 if default is None else 0):
            raise self._corrupt(f"{self._architecture}.{key} is {value!r}")
        return value

    def _number(self, key: str, *, default: float | None = None) -> float:
        value = self._get(key)
        value = default if value is None else value
        if not isinstance(value, (int, float)) or not value > 0:
            raise self._corrupt(f"{self._architecture}.{key} is {value!r}")
        return float(value)

    def _corrupt(self, what: str) -> CorruptModel:
        return CorruptModel(f"{self._source}: {what}; fetch the model again")

    def _unsupported(self, what: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self._source}: {self._architecture}.{what} is not supported by the engine"
        )
