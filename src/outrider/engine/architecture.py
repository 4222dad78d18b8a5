"""What a model looks like: read from its `config.json`, checked, and frozen.

Everything that would change the arithmetic is either honoured or refused by name; nothing is
skipped silently.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.engine.families import (
    TRAITS,
    Activation,
    Family,
    activation_of,
    family_of,
    ropes_of,
)
from outrider.engine.fields import optional_number, positive_integer, positive_number, token_ids
from outrider.engine.rope_config import RopeConfig
from outrider.engine.windows import windows_of
from outrider.errors import CorruptModel, UnknownModel

__all__ = ["ModelConfig", "read_config"]

_QUERY_SCALAR = 256  # Gemma's, where the config does not say it


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The architecture of one decoder: all numbers that its arithmetic needs beside the weights.

    Attributes:
        family: which published architecture it follows; says how a checkpoint stores it.
        vocab_size: rows of the embedding and width of the logits.
        hidden_size, intermediate_size: widths of the residual stream and of the MLP.
        num_layers, num_heads, num_kv_heads, head_dim: shape of the attention.
        rms_norm_eps: added to the mean square in every norm.
        rope, window_rope: how positions turn queries and keys in layers that see all tokens and
            in layers with a window.
        windows: of each layer, how many tokens a token sees there, itself included; None sees all.
        context_length: the most positions the model was made for, in tokens.
        attention_scale: multiplies each product of a query and a key.
        attention_softcap: c if these become c * tanh(x / c) before the softmax; else None.
        logit_softcap: the same for the logits.
        embedding_scale: multiplies the embedding of each token.
        activation: of the MLP's gate; `gelu_tanh` is GELU's approximation by tanh.
        qk_norm: each query and key head is normalized before it is turned.
        post_norms: what attention and MLP give is normalized before it is added.
        tied_head: the logits are computed with the embedding.
        qkv_bias, o_bias, mlp_bias: which linear layers carry a bias.
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
    window_rope: RopeConfig
    windows: tuple[int | None, ...]
    context_length: int
    attention_scale: float
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    activation: Activation = "silu"
    qk_norm: bool = False
    post_norms: bool = False
    tied_head: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read the contents of a Hugging Face `config.json`, old or new key names alike.

        Raises:
            UnsupportedModel: an architecture or a feature that the engine does not run; names it.
            CorruptModel: a key is missing, or its value impossible.
        """
        family = family_of(config)
        traits = TRAITS[family]
        num_layers = positive_integer(config, "num_hidden_layers")
        hidden_size = positive_integer(config, "hidden_size")
        num_heads = positive_integer(config, "num_attention_heads")
        head_dim = config.get("head_dim") or traits.head_dim or hidden_size // num_heads
        if not isinstance(head_dim, int) or head_dim <= 0 or head_dim % 2:
            raise CorruptModel(
                f"config.json: head_dim {head_dim!r} is not a positive even number;"
                " fetch the model again"
            )
        context_length = positive_integer(config, "max_position_embeddings", traits.context_length)
        rope, window_rope = ropes_of(
            config, family, context_length=context_length, head_dim=head_dim
        )
        scalar, attention_softcap, logit_softcap = float(head_dim), None, None
        if traits.gemma:
            scalar = positive_number(
                config.get("query_pre_attn_scalar", _QUERY_SCALAR), "query_pre_attn_scalar"
            )
            attention_softcap, logit_softcap = (
                optional_number(config.get(key, default), key)
                for key, default in zip(
                    ("attn_logit_softcapping", "final_logit_softcapping"),
                    traits.softcaps,
                    strict=True,
                )
            )
        attention_bias = bool(config.get("attention_bias", False))
        return cls(
            family=family,
            vocab_size=positive_integer(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=positive_integer(config, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=_kv_heads(config, num_heads, traits.kv_heads),
            head_dim=head_dim,
            rms_norm_eps=positive_number(
                config.get("rms_norm_eps", traits.rms_norm_eps), "rms_norm_eps"
            ),
            rope=rope,
            window_rope=window_rope,
            windows=windows_of(config, family, num_layers),
            context_length=min(context_length, rope.longest or context_length),
            attention_scale=scalar**-0.5,
            attention_softcap=attention_softcap,
            logit_softcap=logit_softcap,
            embedding_scale=hidden_size**0.5 if traits.gemma else 1.0,
            activation=activation_of(config, traits),
            qk_norm=traits.qk_norm,
            post_norms=traits.gemma,
            tied_head=bool(config.get("tie_word_embeddings", traits.tied_head)),
            qkv_bias=attention_bias or traits.qkv_bias,
            o_bias=attention_bias,
            mlp_bias=bool(config.get("mlp_bias", False)),
            bos_token_id=next(iter(token_ids(config, "bos_token_id")), None),
            eos_token_ids=token_ids(config, "eos_token_id"),
        )

    @property
    def num_queries_per_kv(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads

    def rope_of(self, layer: int) -> RopeConfig:
        """How the heads of a layer are turned."""
        return self.rope if self.windows[layer] is None else self.window_rope

    def with_layers(self, num_layers: int) -> ModelConfig:
        """The same model cut to its first `num_layers` layers.

        Raises:
            ValueError: not between 1 and the layers there are.
        """
        if not 1 <= num_layers <= self.num_layers:
            raise ValueError(
                f"num_layers {num_layers} must lie between 1 and the model's {self.num_layers}"
            )
        return dataclasses.replace(self, num_layers=num_layers, windows=self.windows[:num_layers])


def _kv_heads(config: Mapping[str, Any], num_heads: int, default: int | None) -> int:
    # A key that is absent and a key that is null mean different things to the families.
    if config.get("num_key_value_heads", default) is None:
        return num_heads
    kv_heads = positive_integer(config, "num_key_value_heads", default)
    if num_heads % kv_heads:
        raise CorruptModel(
            f"config.json: num_attention_heads {num_heads} is no multiple of"
            f" num_key_value_heads {kv_heads}; fetch the model again"
        )
    return kv_heads


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
    extra = token_ids(_read_json(generation), "eos_token_id")
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
