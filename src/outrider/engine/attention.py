"""Attention of each sequence's new tokens over its own keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from outrider.engine.architecture import ModelConfig
from outrider.engine.batch import Batch, Span
from outrider.engine.cache import KVCache

__all__ = ["AttentionSpan", "attend", "prepare"]


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """What every layer needs of one sequence, made once per step. All tuples are by layer.

    Attributes:
        rows: its packed rows.
        new_keys, new_values: [kv_heads, count, head_dim], views to write the new tokens to.
        keys, values: [1, kv_heads, L, head_dim], views of all positions that any new token sees
            in the layer.
        masks: [queries_per_kv * count, L], 0 where a token sees a position and -inf elsewhere;
            None if it sees them all.
    """

    rows: slice
    count: int
    new_keys: Sequence[Tensor]
    new_values: Sequence[Tensor]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    masks: Sequence[Tensor | None]


def prepare(
    batch: Batch, cache: KVCache, config: ModelConfig, dtype: torch.dtype
) -> list[AttentionSpan]:
    """Reserve room for the new tokens and make each sequence's views and mask.

    Raises:
        ValueError: the cache was made for a model with other layers.
        ContextLengthExceeded, RuntimeError: see `KVCache.reserve`.
    """
    if cache.num_layers != config.num_layers:
        raise ValueError(
            f"a cache of {cache.num_layers} layers cannot serve a model of {config.num_layers};"
            " use the model's own new_cache"
        )
    return [_prepare_one(span, cache, config, dtype) for span in batch.spans]


def _prepare_one(
    span: Span, cache: KVCache, config: ModelConfig, dtype: torch.dtype
) -> AttentionSpan:
    storage = cache.reserve(span.slot, span.end)
    new = storage[:, :, :, span.start : span.end]
    seen = {window: _seen(span, window, storage, config, dtype) for window in set(config.windows)}
    return AttentionSpan(
        rows=slice(span.row, span.row + span.count),
        count=span.count,
        new_keys=new[:, 0].unbind(0),
        new_values=new[:, 1].unbind(0),
        keys=[seen[window][0][layer] for layer, window in enumerate(config.windows)],
        values=[seen[window][1][layer] for layer, window in enumerate(config.windows)],
        masks=[seen[window][2] for window in config.windows],
    )


def _seen(
    span: Span, window: int | None, storage: Tensor, config: ModelConfig, dtype: torch.dtype
) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor | None]:
    """Keys and values within the window, for every layer, and their mask."""
    first = 0 if window is None else max(0, span.start + 1 - window)
    seen = storage[:, :, :, first : span.end].unsqueeze(2)
    mask = None if span.count == 1 else _mask(span, first, window, config, dtype, storage.device)
    return seen[:, 0].unbind(0), seen[:, 1].unbind(0), mask


def _mask(
    span: Span,
    first: int,
    window: int | None,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    queries = torch.arange(span.start, span.end, device=device).unsqueeze(1)
    keys = torch.arange(first, span.end, device=device).unsqueeze(0)
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
    return mask.repeat(config.num_queries_per_kv, 1)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    spans: Sequence[AttentionSpan],
    layer: int,
    config: ModelConfig,
) -> Tensor:
    """Write the new keys and values of one layer and attend.

    Args:
        queries: [N, heads, head_dim], rotated.
        keys, values: [N, kv_heads, head_dim], keys rotated.

    Returns [N, heads * head_dim].
    """
    outputs = [_attend_one(queries, keys, values, span, layer, config) for span in spans]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_one(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    span: AttentionSpan,
    layer: int,
    config: ModelConfig,
) -> Tensor:
    rows, count = span.rows, span.count
    span.new_keys[layer].copy_(keys[rows].transpose(0, 1))
    span.new_values[layer].copy_(values[rows].transpose(0, 1))
    kv_heads, head_dim = keys.shape[1], keys.shape[2]
    # Query heads that share a key-value head become further rows of it, so that no key is repeated.
    if count == 1:
        grouped = queries[rows].view(1, kv_heads, -1, head_dim)
    else:
        grouped = queries[rows].view(count, kv_heads, -1, head_dim).permute(1, 2, 0, 3)
        grouped = grouped.reshape(
            1, kv_heads, -1, head_dim
        )  # [1, kv_heads, group * count, head_dim]
    attention = (grouped, span.keys[layer], span.values[layer], span.masks[layer])
    if config.attention_softcap is None:
        attended = functional.scaled_dot_product_attention(*attention, scale=config.attention_scale)
    else:
        attended = _softcapped(*attention, config.attention_scale, config.attention_softcap)
    if count == 1:
        return attended.reshape(1, -1)
    return attended.view(kv_heads, -1, count, head_dim).permute(2, 0, 1, 3).reshape(count, -1)


def _softcapped(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    cap: float,
) -> Tensor:
    """Attention whose scores are held between -cap and cap (Gemma 2, 2024)."""
    scores = cap * torch.tanh(queries @ keys.transpose(-1, -2) * (scale / cap))
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1, dtype=torch.float32).to(values.dtype) @ values
