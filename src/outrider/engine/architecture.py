"""What a model looks like: read from its `config.json`, checked, and frozen.

Everything that would change the arithmetic is either honoured or refused by name; nothing is
skipped silently.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from outrider.engine.rope import RopeConfig, positive_number
from outrider.errors import CorruptModel, UnknownModel, UnsupportedModel

__all__ = ["Family", "ModelConfig", "read_config"]

Family = Literal["llama", "mistral", "qwen2"]

_FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
# What a missing key means differs by family; these are the values the formats document.
_DEFAULT_CONTEXT: Final[dict[Family, int]] = {"llama": 2048, "mistral": 131072, "qwen2": 32768}
_DEFAULT_KV_HEADS: Final[dict[Family, int | None]] = {"llama": None, "mistral": 8, "qwen2": 32}
_ARCHITECTURES: Final[dict[Family, str]] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
}
_DEFAULT_WINDOW: Final = 4096
_DEFAULT_MAX_WINDOW_LAYERS: Final = 28


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The architecture of one decoder.

    Attributes:
        family: which published architecture it follows.
        vocab_size: rows of the embedding and width of the logits.
        hidden_size, intermediate_size: widths of the residual stream and of the MLP.
        num_layers, num_heads, num_kv_heads, head_dim: shape of the attention.
        rms_norm_eps: added to the mean square in every norm.
        rope: how positions turn queries and keys.
        context_length: the most positions the model was made for, in tokens.
        tied_head: the logits are computed with the embedding.
        qkv_bias, o_bias, mlp_bias: which linear layers carry a bias.
        sliding_window: a token sees this many tokens, itself included; None sees all.
        bos_token_id: begins a text, if the model has such a token.
        eos_token_ids: end an output.
    """

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    context_length: int
    tied_head: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read the contents of a Hugging Face `config.json`, old or new key names alike.

        Raises:
            UnsupportedModel: an architecture or a feature that the engine does not run; names it.
            CorruptModel: a key is missing, or its value impossible.
        """
        family = _family(config)
        _refuse_unknown_arithmetic(config, family)
        num_layers = _positive(config, "num_hidden_layers")
        hidden_size = _positive(config, "hidden_size")
        num_heads = _positive(config, "num_attention_heads")
        # A key that is absent and a key that is null mean different things to the families.
        if config.get("num_key_value_heads", _DEFAULT_KV_HEADS[family]) is None:
            kv_heads = num_heads
        else:
            kv_heads = _positive(config, "num_key_value_heads", _DEFAULT_KV_HEADS[family])
        context_length = _positive(config, "max_position_embeddings", _DEFAULT_CONTEXT[family])
        head_dim = config.get("head_dim") or hidden_size // num_heads
        if num_heads % kv_heads:
            raise CorruptModel(
                f"config.json: num_attention_heads {num_heads} is no multiple of"
                f" num_key_value_heads {kv_heads}; fetch the model again"
            )
        if not isinstance(head_dim, int) or head_dim <= 0 or head_dim % 2:
            raise CorruptModel(
                f"config.json: head_dim {head_dim!r} is not a positive even number;"
                " fetch the model again"
            )
        attention_bias = bool(config.get("attention_bias", False))
        return cls(
            family=family,
            vocab_size=_positive(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_positive(config, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=positive_number(config.get("rms_norm_eps", 1e-6), "rms_norm_eps"),
            rope=RopeConfig.from_hf(config, context_length=context_length, head_dim=head_dim),
            context_length=context_length,
            tied_head=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=attention_bias or family == "qwen2",
            o_bias=attention_bias,
            mlp_bias=bool(config.get("mlp_bias", False)),
            sliding_window=_sliding_window(config, family, num_layers),
            bos_token_id=next(iter(_token_ids(config, "bos_token_id")), None),
            eos_token_ids=_token_ids(config, "eos_token_id"),
        )

    @property
    def num_queries_per_kv(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads

    def with_layers(self, num_layers: int) -> ModelConfig:
        """The same model cut to its first `num_layers` layers.

        Raises:
            ValueError: not between 1 and the layers there are.
        """
        if not 1 <= num_layers <= self.num_layers:
            raise ValueError(
                f"num_layers {num_layers} must lie between 1 and the model's {self.num_layers}"
            )
        return dataclasses.replace(self, num_layers=num_layers)


def read_config(folder: Path) -> ModelConfig:
    """Read `config.json` in `folder`, with the end tokens that `generation_config.json` adds.

    Instruction-tuned models often name their end-of-turn token only in the latter.

    Raises:
        UnknownModel: the folder has no `config.json`.
        CorruptModel, UnsupportedModel: see `ModelConfig.from_hf`.
    """
    if not (folder / "config.json").is_file():
        raise UnknownModel(
            f"{folder} holds no config.json; give the folder of a Hugging Face model"
        )
    config = ModelConfig.from_hf(_read_json(folder / "config.json"))
    generation = folder / "generation_config.json"
    if not generation.is_file():
        return config
    extra = _token_ids(_read_json(generation), "eos_token_id")
    return dataclasses.replace(config, eos_token_ids=config.eos_token_ids | extra)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptModel(
            f"{path} cannot be read as JSON ({error}); fetch the model again"
        ) from error
    if not isinstance(content, dict):
        raise CorruptModel(f"{path} is not a JSON object; fetch the model again")
    return content


def _family(config: Mapping[str, Any]) -> Family:
    model_type = config.get("model_type")
    if model_type not in _FAMILIES:
        raise UnsupportedModel(
            f"model_type {model_type!r} is not supported; the engine runs {', '.join(_FAMILIES)}"
        )
    family = cast("Family", model_type)
    architectures = config.get("architectures")
    if architectures and _ARCHITECTURES[family] not in architectures:
        raise UnsupportedModel(
            f"architectures {architectures!r} is not supported; for model_type {family}"
            f" the engine runs {_ARCHITECTURES[family]}"
        )
    return family


def _refuse_unknown_arithmetic(config: Mapping[str, Any], family: Family) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"hidden_act {activation!r} is not supported; the engine runs silu")
    quantization = config.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise UnsupportedModel(
            f"quantization_config with quant_method {method!r} is not supported; use the"
            " unquantized model or a GGUF file"
        )
    if family != "llama":
        for key in ("attention_bias", "mlp_bias"):
            if config.get(key):
                raise UnsupportedModel(
                    f"{key} {config[key]!r} is not supported for model_type {family}; only llama"
                )


def _sliding_window(config: Mapping[str, Any], family: Family, num_layers: int) -> int | None:
    window = config.get("sliding_window", None if family == "llama" else _DEFAULT_WINDOW)
    match family:
        case "llama":
            sliding = False
        case "mistral":
            sliding = window is not None
        case "qwen2":
            sliding = window is not None and bool(config.get("use_sliding_window", False))
    layer_types = config.get("layer_types")
    if layer_types is not None:
        sliding = _one_layer_type(layer_types, sliding)
    elif sliding and family == "qwen2":
        first = config.get("max_window_layers", _DEFAULT_MAX_WINDOW_LAYERS)
        if 0 < first < num_layers:
            raise UnsupportedModel(
                f"max_window_layers {first} of {num_layers} layers is not supported; the engine"
                " runs a sliding window in every layer or in none"
            )
        sliding = first <= 0
    if not sliding:
        return None
    if not isinstance(window, int) or window <= 0:
        raise CorruptModel(
            f"config.json: sliding_window {window!r} is not a positive number;"
            " fetch the model again"
        )
    return window


def _one_layer_type(layer_types: Sequence[str], sliding: bool) -> bool:
    kinds = set(layer_types)
    if kinds == {"full_attention"}:
        return False
    if kinds == {"sliding_attention"} and sliding:
        return True
    raise UnsupportedModel(
        f"layer_types {sorted(kinds)} with sliding window {'on' if sliding else 'off'} is not"
        " supported; the engine runs the same attention in every layer"
    )


def _positive(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise CorruptModel(
            f"config.json: {key} {value!r} is not a positive whole number; fetch the model again"
        )
    return value


def _token_ids(config: Mapping[str, Any], key: str) -> frozenset[int]:
    value = config.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) for token in ids):
        raise CorruptModel(
            f"config.json: {key} {value!r} is not one or more token ids; fetch the model again"
        )
    return frozenset(ids)
