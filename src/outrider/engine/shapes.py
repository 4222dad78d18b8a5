"""The tensors of a model by name and shape, as Hugging Face checkpoints of its family have them."""

from __future__ import annotations

from typing import Final

from outrider.engine.architecture import ModelConfig
from outrider.engine.families import TRAITS

__all__ = ["EMBEDDING", "HEAD", "NORM", "layer_shapes", "tensor_shapes"]

EMBEDDING: Final = "model.embed_tokens.weight"
NORM: Final = "model.norm.weight"
HEAD: Final = "lm_head.weight"


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name within a layer, such as `mlp.up_proj.weight`, to shape, of every tensor of one layer."""
    hidden, wide = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.o_proj": (hidden, queries, config.o_bias),
        "mlp.down_proj": (hidden, wide, config.mlp_bias),
    }
    if TRAITS[config.family].fused:
        linears["self_attn.qkv_proj"] = (queries + 2 * keys, hidden, config.qkv_bias)
        linears["mlp.gate_up_proj"] = (2 * wide, hidden, config.mlp_bias)
    else:
        linears["self_attn.q_proj"] = (queries, hidden, config.qkv_bias)
        linears["self_attn.k_proj"] = (keys, hidden, config.qkv_bias)
        linears["self_attn.v_proj"] = (keys, hidden, config.qkv_bias)
        linears["mlp.gate_proj"] = (wide, hidden, config.mlp_bias)
        linears["mlp.up_proj"] = (wide, hidden, config.mlp_bias)
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.post_norms:
        shapes["pre_feedforward_layernorm.weight"] = (hidden,)
        shapes["post_feedforward_layernorm.weight"] = (hidden,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    for name, (rows, columns, has_bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{name}.bias"] = (rows,)
    return shapes


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Full name to shape of every tensor that the model must have; no head if it is tied."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, config.hidden_size),
        NORM: (config.hidden_size,),
    }
    for index in range(config.num_layers):
        for name, shape in layer_shapes(config).items():
            shapes[f"model.layers.{index}.{name}"] = shape
    if not config.tied_head:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes
