"""The transformer decoder: ragged batches of new tokens in, logits of the wanted ones out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from outrider.engine.architecture import ModelConfig
from outrider.engine.attention import AttentionSpan, attend, prepare
from outrider.engine.batch import Chunk, pack
from outrider.engine.cache import KVCache
from outrider.engine.linear import Linear
from outrider.engine.rope import RopeTable, apply_rope

__all__ = ["Decoder", "Layer"]


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer.

    Attributes:
        attention_norm, mlp_norm: [hidden].
        qkv: to queries, keys and values, in this order.
        output: from the heads back to the residual stream.
        gate_up: to gate and up, in this order.
        down: from the MLP back to the residual stream.
    """

    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class Decoder:
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
        self._rope = RopeTable(config.rope, config.head_dim, embedding.device)

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        return self._embedding.dtype

    def truncated(self, num_layers: int) -> Decoder:
        """The first `num_layers` layers as a model of their own, sharing all weights with this one.

        Raises:
            ValueError: not between 1 and the layers there are.
        """
        return Decoder(
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
        angles = self._rope.at(batch.positions, batch.end, self.dtype)
        hidden = self._embedding[batch.token_ids]
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
        angles: tuple[Tensor, Tensor],
        spans: Sequence[AttentionSpan],
        wanted: Tensor | None = None,
    ) -> Tensor:
        """[N, hidden] to [N, hidden], or to the `wanted` rows alone once all keys are written."""
        layer, config = self._layers[index], self.config
        normed = self._normalize(hidden, layer.attention_norm)
        turned = config.num_heads + config.num_kv_heads
        heads = layer.qkv(normed).view(-1, turned + config.num_kv_heads, config.head_dim)
        rotated = apply_rope(heads[:, :turned], *angles)
        attended = attend(
            rotated[:, : config.num_heads],
            rotated[:, config.num_heads :],
            heads[:, turned:],
            spans,
            index,
        )
        if wanted is not None:
            attended, hidden = attended[wanted], hidden[wanted]
            if len(wanted) == 0:
                return hidden
        hidden = hidden + layer.output(attended)
        gate, up = layer.gate_up(self._normalize(hidden, layer.mlp_norm)).chunk(2, dim=-1)
        return hidden + layer.down(functional.silu(gate) * up)

    def _logits(self, hidden: Tensor) -> Tensor:
        if hidden.shape[0] == 0:
            return torch.empty(0, self.config.vocab_size, device=self.device)
        return self._head(self._normalize(hidden, self._norm)).float()

    def _normalize(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Root mean square norm over the last dimension, in float32 (Zhang and Sennrich, 2019)."""
        return functional.rms_norm(
            rows, (self.config.hidden_size,), weight, self.config.rms_norm_eps
        )
