"""The transformer decoder: ragged batches of new tokens in, logits of the wanted ones out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from outrider.engine.architecture import ModelConfig
from outrider.engine.attention import AttentionSpan, attend, prepare
from outrider.engine.batch import Chunk, pack
from outrider.engine.cache import KVCache
from outrider.engine.families import Activation
from outrider.engine.linear import Linear
from outrider.engine.rope import RopeTable, apply_rope

__all__ = ["Layer", "TorchDecoder"]

_ACTIVATIONS: Final[dict[Activation, Callable[[Tensor], Tensor]]] = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer.

    Attributes:
        attention_norm, mlp_norm: [hidden].
        qkv: to queries, keys and values, in this order.
        output: from the heads back to the residual stream.
        gate_up: to gate and up, in this order.
        down: from the MLP back to the residual stream.
        qk_norm: [heads + kv_heads, head_dim], of each query and key head before it is turned.
        attention_out_norm, mlp_out_norm: [hidden], of what attention and MLP add.

    The last three are None in models that have no such norms.
    """

    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    qk_norm: Tensor | None = None
    attention_out_norm: Tensor | None = None
    mlp_out_norm: Tensor | None = None


class TorchDecoder:
    """A decoder on one device. Holds no state of any sequence: that is in the `KVCache`."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        embedding: Tensor,
        layers: Sequence[Layer],
        norm: Tensor,
        head: Linear,
    ) -> None:
        """Args:
        embedding: [V, hidden]; its dtype and device are those of the model.
        layers: as many as `config` says.
        norm: [hidden], before the head.
        head: to logits, [hidden] to [V].
        """
        self.config = config
        self._embedding = embedding
        self._layers = tuple(layers)
        self._norm = norm
        self._head = head
        self._activate = _ACTIVATIONS[config.activation]
        # Rounded to the model's number format, as published models were trained with.
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=embedding.dtype).item()
        ropes = [config.rope_of(index) for index in range(config.num_layers)]
        distinct = list(dict.fromkeys(ropes))
        self._rope_tables = [
            RopeTable(rope, config.head_dim, embedding.device) for rope in distinct
        ]
        self._table_of = [distinct.index(rope) for rope in ropes]

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._embedding.device

    @property
    def batch_invariant(self) -> bool:
        """Not so: how attention is computed depends on how many tokens a step has."""
        return False

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        return self._embedding.dtype

    def truncated(self, num_layers: int) -> TorchDecoder:
        """The first `num_layers` layers as a model of their own, sharing all weights with this one.

        Raises:
            ValueError: not between 1 and the layers there are.
        """
        return TorchDecoder(
            self.config.with_layers(num_layers),
            embedding=self._embedding,
            layers=self._layers[:num_layers],
            norm=self._norm,
            head=self._head,
        )

    def new_cache(self, *, num_slots: int, max_length: int) -> KVCache:
        """An empty cache that fits this model. Raises ConfigError as `KVCache` does."""
        return KVCache(
            self.config,
            num_slots=num_slots,
            max_length=max_length,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk], cache: KVCache) -> list[Tensor]:
        """Append each chunk's tokens to its slot.

        Returns, for each chunk, the logits that follow its last `num_logits` tokens:
        [num_logits, V], float32, on the model's device. The cost is that of the new tokens and
        their attention.

        If it raises, all slots hold what they held before.

        Raises:
            ValueError, RequestError, ContextLengthExceeded, RuntimeError: see `batch.pack`.
        """
        batch = pack(chunks, cache, vocab_size=self.config.vocab_size, device=self.device)
        spans = prepare(batch, cache, self.config, self.dtype)
        angles = [table.at(batch.positions, batch.end, self.dtype) for table in self._rope_tables]
        hidden = self._embedding[batch.token_ids]
        if self._embedding_scale != 1:
            hidden = hidden * self._embedding_scale
        for index in range(len(self._layers) - 1):
            hidden = self._run_layer(index, hidden, angles, spans)
        hidden = self._run_layer(len(self._layers) - 1, hidden, angles, spans, batch.wanted)
        logits = self._logits(hidden)
        for span in batch.spans:
            cache.commit(span.slot, span.end)
        return list(torch.split(logits, list(batch.counts)))

    def _run_layer(
        self,
        index: int,
        hidden: Tensor,
        angles: Sequence[tuple[Tensor, Tensor]],
        spans: Sequence[AttentionSpan],
        wanted: Tensor | None = None,
    ) -> Tensor:
        """[N, hidden] to [N, hidden], or to the `wanted` rows alone once all keys are written."""
        layer, config = self._layers[index], self.config
        normed = self._normalize(hidden, layer.attention_norm)
        turned = config.num_heads + config.num_kv_heads
        heads = layer.qkv(normed).view(-1, turned + config.num_kv_heads, config.head_dim)
        turning = heads[:, :turned]
        if layer.qk_norm is not None:
            turning = functional.rms_norm(turning, (config.head_dim,), None, config.rms_norm_eps)
            turning = turning * layer.qk_norm
        rotated = apply_rope(turning, *angles[self._table_of[index]])
        attended = attend(
            rotated[:, : config.num_heads],
            rotated[:, config.num_heads :],
            heads[:, turned:],
            spans,
            index,
            config,
        )
        if wanted is not None:
            attended, hidden = attended[wanted], hidden[wanted]
            if len(wanted) == 0:
                return hidden
        mixed = layer.output(attended)
        if layer.attention_out_norm is not None:
            mixed = self._normalize(mixed, layer.attention_out_norm)
        hidden = hidden + mixed
        gate, up = layer.gate_up(self._normalize(hidden, layer.mlp_norm)).chunk(2, dim=-1)
        mapped = layer.down(self._activate(gate) * up)
        if layer.mlp_out_norm is not None:
            mapped = self._normalize(mapped, layer.mlp_out_norm)
        return hidden + mapped

    def _logits(self, hidden: Tensor) -> Tensor:
        if hidden.shape[0] == 0:
            return torch.empty(0, self.config.vocab_size, device=self.device)
        logits = self._head(self._normalize(hidden, self._norm)).float()
        cap = self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _normalize(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Root mean square norm over the last dimension, in float32 (Zhang and Sennrich, 2019)."""
        return functional.rms_norm(
            rows, (self.config.hidden_size,), weight, self.config.rms_norm_eps
        )
