"""A GGUF file's metadata, said in the words of a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from outrider.engine.families import TRAITS, Family
from outrider.engine.gguf_header import GGUFHeader, Scalar
from outrider.errors import CorruptModel, UnsupportedModel

__all__ = ["ROPE_FACTORS", "hf_config"]

_FACTORS: Final = "rope_freqs.weight"
_SHORT_FACTORS: Final = "rope_factors_short.weight"
_LONG_FACTORS: Final = "rope_factors_long.weight"
ROPE_FACTORS: Final[tuple[str, ...]] = (_FACTORS, _SHORT_FACTORS, _LONG_FACTORS)
"""The tensors that hold one divisor per rotary frequency, if a model has them."""

_FAMILIES: Final[dict[str, Family]] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "phi3": "phi3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}
# Files do not say by what Gemma scales its attention. It is the head size, but in the models of
# these many layers, one per family, the hidden size over the heads.
_SCALED_BY_HIDDEN: Final = {"gemma2": 46, "gemma3": 62}
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
_GEMMA2_WINDOW: Final = 4096  # of files that do not say it
_KNOWN_ALONE: Final = {
    "phi3": frozenset({"rope.scaling.attn_factor"}),
    "gemma2": frozenset({"attn_logit_softcapping", "final_logit_softcapping"}),
    "gemma3": frozenset(
        {"final_logit_softcapping", "rope.freq_base_swa", "attention.sliding_window_pattern"}
    ),
}


def hf_config(
    header: GGUFHeader, source: str, rope_factors: Mapping[str, list[float]]
) -> dict[str, Any]:
    """The `config.json` of the model in the file called `source`.

    Args:
        rope_factors: the contents of those of the tensors `ROPE_FACTORS` that there are.

    Raises:
        CorruptModel: something is missing or impossible; names it.
        UnsupportedModel: an architecture or a feature not supported; names it.
    """
    return _Metadata(header, source).hf_config(rope_factors)


class _Metadata:
    def __init__(self, header: GGUFHeader, source: str) -> None:
        self._header = header
        self._values = header.metadata
        self._source = source
        self._architecture = str(self._values.get("general.architecture", ""))

    def hf_config(self, rope_factors: Mapping[str, list[float]]) -> dict[str, Any]:
        self._refuse_unknown()
        heads = self._integer("attention.head_count")
        hidden = self._integer("embedding_length")
        head_dim = self._integer("attention.key_length", default=hidden // heads)
        whole = ["attention.value_length", "rope.dimension_count"]
        if self._architecture == "phi3":
            whole.remove("rope.dimension_count")
        for key in whole:
            if self._integer(key, default=head_dim) != head_dim:
                raise self._unsupported(f"{key} {self._get(key)} beside heads of {head_dim}")
        window = self._integer(
            "attention.sliding_window",
            default=_GEMMA2_WINDOW if self._architecture == "gemma2" else 0,
        )
        if window and self._architecture in ("qwen2", "qwen3"):
            raise self._unsupported(f"attention.sliding_window {window}")
        family = _FAMILIES[self._architecture]
        if window and family == "llama":
            family = "mistral"
        config: dict[str, Any] = {
            "architectures": [TRAITS[family].architecture],
            "model_type": family,
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
            "rope_scaling": self._rope_scaling(rope_factors),
            "tie_word_embeddings": "output.weight" not in self._header.tensors,
            "bos_token_id": self._token_id("bos_token_id"),
            "eos_token_id": self._end_tokens(),
        }
        if TRAITS[family].attention_bias:
            config["attention_bias"] = self._has_tensor("blk.0.attn_q.bias")
        if TRAITS[family].mlp_bias:
            config["mlp_bias"] = self._has_tensor("blk.0.ffn_up.bias")
        if family != "llama":
            config["sliding_window"] = window or None
        return config | self._own(heads, hidden, head_dim)

    def _own(self, heads: int, hidden: int, head_dim: int) -> dict[str, Any]:
        """The keys that one family alone has."""
        architecture = self._architecture
        if architecture == "phi3":
            turned = self._integer("rope.dimension_count", default=head_dim)
            own: dict[str, Any] = {"partial_rotary_factor": turned / head_dim}
            original = self._get("rope.scaling.original_context_length")
            if original is not None:
                own["original_max_position_embeddings"] = original
            return own
        if architecture not in ("gemma2", "gemma3"):
            return {"hidden_act": "silu"}
        by_hidden = self._integer("block_count") == _SCALED_BY_HIDDEN[architecture]
        own = {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": hidden // heads if by_hidden else head_dim,
        }
        own |= self._present("final_logit_softcapping", "attn_logit_softcapping")
        if architecture == "gemma3":
            own["rope_local_base_freq"] = self._number("rope.freq_base_swa", default=10000.0)
            own["sliding_window_pattern"] = self._integer(
                "attention.sliding_window_pattern", default=6
            )
        return own

    def _present(self, *keys: str) -> dict[str, float]:
        """Numbers that mean something of their own where they are missing."""
        return {key: self._number(key) for key in keys if self._get(key) is not None}

    def _refuse_unknown(self) -> None:
        if self._architecture not in _FAMILIES:
            raise UnsupportedModel(
                f"{self._source}: general.architecture {self._architecture!r} is not supported;"
                f" the engine runs {', '.join(_FAMILIES)}"
            )
        parts = self._values.get("split.count", 1)
        if parts not in (0, 1):
            raise UnsupportedModel(
                f"{self._source} is one of {parts} parts, which are not supported; merge them into"
                " one file"
            )
        prefix = f"{self._architecture}."
        known = _KNOWN | _KNOWN_ALONE.get(self._architecture, frozenset())
        for key, value in self._values.items():
            name = key.removeprefix(prefix)
            if name != key and name not in known and value:
                raise self._unsupported(f"{name} {value!r}")

    def _rope_scaling(self, factors: Mapping[str, list[float]]) -> dict[str, Any] | None:
        if _SHORT_FACTORS in factors or _LONG_FACTORS in factors:
            return self._longrope(factors)
        factor = self._number("rope.scale_linear", default=1.0)
        factor = self._number("rope.scaling.factor", default=factor)
        # A factor without a type has always meant linear.
        scaling = self._get("rope.scaling.type")
        kind = ("linear" if factor != 1.0 else "none") if scaling is None else scaling
        if kind not in ("none", "linear"):
            raise self._unsupported(f"rope.scaling.type {kind!r}")
        linear = kind == "linear" and factor != 1.0
        if _FACTORS not in factors:
            return {"rope_type": "linear", "factor": factor} if linear else None
        if linear:
            raise self._unsupported(f"rope.scaling.type linear beside the tensor {_FACTORS}")
        return {"rope_type": "frequency_factors", "factors": factors[_FACTORS]}

    def _longrope(self, factors: Mapping[str, list[float]]) -> dict[str, Any]:
        if self._architecture != "phi3" or _FACTORS in factors:
            raise UnsupportedModel(
                f"{self._source}: tensor {', '.join(factors)} is not supported by the engine for"
                f" the architecture {self._architecture}"
            )
        for name in (_SHORT_FACTORS, _LONG_FACTORS):
            if name not in factors:
                raise self._corrupt(f"there is no tensor {name}")
        return {
            "rope_type": "longrope",
            "short_factor": factors[_SHORT_FACTORS],
            "long_factor": factors[_LONG_FACTORS],
            "attention_factor": self._number("rope.scaling.attn_factor", default=1.0),
        }

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
