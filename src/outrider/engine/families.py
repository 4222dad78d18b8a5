"""What the families of models have of their own: defaults, and the keys that only some honour.

The defaults are those that the published implementations give to a missing key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from outrider.engine.rope_config import RopeConfig
from outrider.errors import UnsupportedModel

__all__ = [
    "TRAITS",
    "Activation",
    "Family",
    "Traits",
    "activation_of",
    "family_of",
    "ropes_of",
]

Family = Literal["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text"]
"""The `model_type` of a family's `config.json`."""

Activation = Literal["silu", "gelu_tanh"]

_FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
_ACTIVATIONS: Final[dict[str, Activation]] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True)
class Traits:
    """What distinguishes one family.

    Attributes:
        architecture: the only class that the engine runs of it.
        context_length, kv_heads, head_dim, rms_norm_eps, tied_head, theta, window, softcaps: what
            a missing key means; None is one key-value head per query head, heads that share the
            hidden size, no window. `softcaps` are those of the attention and of the logits.
        attention_bias, mlp_bias: whether the key of this name is honoured, if true.
        qkv_bias: queries, keys and values always have a bias.
        fused: stores queries, keys and values as one tensor, and gate and up as another.
        partial_rotary: a part of each head may be left unturned.
        layered_windows: which layers have a window is said by `layer_types`, and not all must.
        qk_norm: each query and key head is normalized before it is turned.
        gemma: norms are stored less one; attention and MLP have a norm behind them too; the
            embedding is scaled, and the attention by a number of its own; the activation is GELU
            unless `hidden_activation` says otherwise.
    """

    architecture: str
    context_length: int
    kv_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    tied_head: bool = False
    theta: float = 10000.0
    window: int | None = None
    softcaps: tuple[float | None, float | None] = (None, None)
    attention_bias: bool = False
    mlp_bias: bool = False
    qkv_bias: bool = False
    fused: bool = False
    partial_rotary: bool = False
    layered_windows: bool = False
    qk_norm: bool = False
    gemma: bool = False


TRAITS: Final[dict[Family, Traits]] = {
    "llama": Traits("LlamaForCausalLM", 2048, attention_bias=True, mlp_bias=True),
    "mistral": Traits("MistralForCausalLM", 131072, kv_heads=8, window=4096),
    "qwen2": Traits(
        "Qwen2ForCausalLM", 32768, kv_heads=32, window=4096, qkv_bias=True, layered_windows=True
    ),
    "qwen3": Traits(
        "Qwen3ForCausalLM",
        32768,
        kv_heads=32,
        head_dim=128,
        window=4096,
        attention_bias=True,
        layered_windows=True,
        qk_norm=True,
    ),
    "phi3": Traits("Phi3ForCausalLM", 4096, rms_norm_eps=1e-5, fused=True, partial_rotary=True),
    "gemma2": Traits(
        "Gemma2ForCausalLM",
        8192,
        kv_heads=4,
        head_dim=256,
        tied_head=True,
        window=4096,
        softcaps=(50.0, 30.0),
        attention_bias=True,
        layered_windows=True,
        gemma=True,
    ),
    "gemma3_text": Traits(
        "Gemma3ForCausalLM",
        131072,
        kv_heads=4,
        head_dim=256,
        tied_head=True,
        theta=1e6,
        window=4096,
        attention_bias=True,
        layered_windows=True,
        qk_norm=True,
        gemma=True,
    ),
}
_LOCAL_THETA: Final = 10000.0


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a `config.json`.

    Raises:
        UnsupportedModel: another family, another class of it, or a feature not supported; names it.
    """
    model_type = config.get("model_type")
    if model_type not in _FAMILIES:
        advice = ""
        if "text_config" in config:
            advice = "; of a model with a text_config, use the text part alone, such as a GGUF file"
        raise UnsupportedModel(
            f"model_type {model_type!r} is not supported; the engine runs"
            f" {', '.join(_FAMILIES)}{advice}"
        )
    family = cast("Family", model_type)
    traits = TRAITS[family]
    architectures = config.get("architectures")
    if architectures and traits.architecture not in architectures:
        raise UnsupportedModel(
            f"architectures {architectures!r} is not supported; for model_type {family}"
            f" the engine runs {traits.architecture}"
        )
    _refuse_unknown_arithmetic(config, family, traits)
    return family


def _refuse_unknown_arithmetic(config: Mapping[str, Any], family: Family, traits: Traits) -> None:
    quantization = config.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise UnsupportedModel(
            f"quantization_config with quant_method {method!r} is not supported; use the"
            " unquantized model or a GGUF file"
        )
    honoured = {
        "attention_bias": traits.attention_bias,
        "mlp_bias": traits.mlp_bias,
        "use_bidirectional_attention": False,
        "attn_logit_softcapping": family == "gemma2",
    }
    for key, known in honoured.items():
        if config.get(key) and not known:
            raise UnsupportedModel(
                f"{key} {config[key]!r} is not supported for model_type {family}"
            )


def activation_of(config: Mapping[str, Any], traits: Traits) -> Activation:
    """Of the MLP's gate. Raises UnsupportedModel if the engine does not run it."""
    key, default = "hidden_act", "silu"
    if traits.gemma:
        key, default = "hidden_activation", "gelu_pytorch_tanh"
    name = config.get(key, default)
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(
            f"{key} {name!r} is not supported; the engine runs {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def ropes_of(
    config: Mapping[str, Any], family: Family, *, context_length: int, head_dim: int
) -> tuple[RopeConfig, RopeConfig]:
    """How layers that see everything and layers with a window turn their heads.

    Raises:
        UnsupportedModel, CorruptModel: see `RopeConfig.from_hf`.
    """
    traits = TRAITS[family]

    def read(part: Mapping[str, Any]) -> RopeConfig:
        return RopeConfig.from_hf(
            part,
            context_length=context_length,
            head_dim=head_dim,
            theta=traits.theta,
            partial=traits.partial_rotary,
        )

    if family != "gemma3_text":
        rope = read(config)
        return rope, rope
    parameters = config.get("rope_parameters") or {}
    if not isinstance(parameters, Mapping) or parameters.keys() - {
        "full_attention",
        "sliding_attention",
    }:
        raise UnsupportedModel(
            f"rope_parameters {parameters!r} is not supported for model_type {family}; the engine"
            " reads them by layer type, full_attention and sliding_attention"
        )
    full = {
        "rope_theta": config.get("rope_theta"),
        "rope_parameters": parameters.get("full_attention"),
        "rope_scaling": config.get("rope_scaling"),
    }
    local = {
        "rope_theta": config.get("rope_local_base_freq") or _LOCAL_THETA,
        "rope_parameters": parameters.get("sliding_attention"),
    }
    return read(full), read(local)
