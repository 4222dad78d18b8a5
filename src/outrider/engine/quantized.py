"""The decoder over 8-bit and 4-bit weights: one call of the compiled kernels per step.

A row's logits do not depend on the rows beside it, on how its sequence was cut into steps, or on
where its keys and values lie: sums are exact whole numbers or are made in an order that the
position alone decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from outrider.engine.architecture import ModelConfig
from outrider.engine.batch import Batch, Chunk, pack
from outrider.engine.cache import KVCache
from outrider.engine.kernels import PackedLinear, Threads, kernels, pointer
from outrider.engine.rope import RopeTable
from outrider.errors import UnsupportedModel

__all__ = ["QuantizedDecoder", "QuantizedLayer", "check_runs"]

_MAX_HEAD_DIM: Final = 256
_KEPT: Final = torch.float16
"""What keys and values are kept in."""


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """As `decoder.Layer`, with norms in float32; `gate_up` alternates 8 outputs of each."""

    attention_norm: Tensor
    qkv: PackedLinear
    output: PackedLinear
    mlp_norm: Tensor
    gate_up: PackedLinear
    down: PackedLinear
    qk_norm: Tensor | None = None
    attention_out_norm: Tensor | None = None
    mlp_out_norm: Tensor | None = None


def check_runs(config: ModelConfig) -> None:
    """Raises UnsupportedModel if the kernels cannot run a model of these shapes."""
    for name, value, unit in (
        ("hidden_size", config.hidden_size, 8),
        ("intermediate_size", config.intermediate_size, 8),
        ("head_dim", config.head_dim, 16),
    ):
        if value % unit:
            raise UnsupportedModel(
                f"{name} {value} is no multiple of {unit}, which int8 and int4 need; use float32"
            )
    if config.head_dim > _MAX_HEAD_DIM:
        raise UnsupportedModel(
            f"head_dim {config.head_dim} is over the {_MAX_HEAD_DIM} that int8 and int4 can run;"
            " use float32"
        )


class QuantizedDecoder:
    """A decoder on the CPU. Holds no state of any sequence: that is in the `KVCache`."""

    device = torch.device("cpu")
    batch_invariant = True

    def __init__(
        self,
        config: ModelConfig,
        *,
        embedding: PackedLinear,
        layers: Sequence[QuantizedLayer],
        norm: Tensor,
        head: PackedLinear,
        threads: Threads,
    ) -> None:
        """Args:
        embedding: from the hidden width to V; the weights of an output are what its token begins
            as. The head itself, or a layer of its own.
        layers: as many as `config` says.
        norm: [hidden], float32, before the head.
        head: [hidden] to [V].
        threads: to compute with; may be shared with other decoders.
        """
        self.config = config
        self._embedding = embedding
        self._layers = tuple(layers)
        self._norm = norm
        self._head = head
        self._threads = threads
        ropes = [config.rope_of(index) for index in range(config.num_layers)]
        distinct = list(dict.fromkeys(ropes))
        self._rope_tables = [RopeTable(rope, config.head_dim, self.device) for rope in distinct]
        self._kv_bytes = (
            2 * config.num_layers * config.num_kv_heads * config.head_dim * _KEPT.itemsize
        )
        self._native = kernels()
        self._model, self._keep = self._describe([distinct.index(rope) for rope in ropes])

    @property
    def threads(self) -> Threads:
        """What it computes with."""
        return self._threads

    @property
    def weight_bytes(self) -> int:
        """What one step for one token reads of the weights, in bytes."""
        linears = [
            linear
            for layer in self._layers
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)
        ]
        return sum(linear.nbytes for linear in (*linears, self._head))

    def truncated(self, num_layers: int) -> QuantizedDecoder:
        """The first `num_layers` layers as a model of their own, sharing all weights with this one.

        Raises:
            ValueError: not between 1 and the layers there are.
        """
        return QuantizedDecoder(
            self.config.with_layers(num_layers),
            embedding=self._embedding,
            layers=self._layers[:num_layers],
            norm=self._norm,
            head=self._head,
            threads=self._threads,
        )

    def new_cache(self, *, num_slots: int, max_length: int) -> KVCache:
        """An empty cache that fits this model. Raises ConfigError as `KVCache` does."""
        return KVCache(
            self.config,
            num_slots=num_slots,
            max_length=max_length,
            dtype=_KEPT,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk], cache: KVCache) -> list[Tensor]:
        """As `Decoder.forward`."""
        config = self.config
        batch = pack(chunks, cache, vocab_size=config.vocab_size, device=self.device)
        if (cache.num_layers, cache.bytes_per_token) != (config.num_layers, self._kv_bytes):
            raise ValueError(
                f"a cache of {cache.num_layers} layers and {cache.bytes_per_token} bytes a token"
                f" cannot serve a model of {config.num_layers} and {self._kv_bytes}; use the"
                " model's own new_cache"
            )
        storages = [cache.reserve(span.slot, span.end) for span in batch.spans]
        logits = torch.empty(sum(batch.counts), config.vocab_size)
        self._run(batch, storages, logits)
        for span in batch.spans:
            cache.commit(span.slot, span.end)
        return list(torch.split(logits, list(batch.counts)))

    def _run(self, batch: Batch, storages: Sequence[Tensor], logits: Tensor) -> None:
        # Nothing here may start torch's own threads: they would wait for more work by spinning, on
        # the processors that the kernels need.
        ffi = self._native.ffi
        tables = [table.tables(batch.end) for table in self._rope_tables]
        ropes = ffi.new("od_rope[]", len(tables))
        for rope, (cosines, sines) in zip(ropes, tables, strict=True):
            rope.cosines, rope.sines = pointer(cosines, "float *"), pointer(sines, "float *")
        spans = ffi.new("od_span[]", len(storages))
        for target, span, storage in zip(spans, batch.spans, storages, strict=True):
            target.row, target.count, target.start = span.row, span.count, span.start
            target.capacity = storage.shape[3]
            target.storage = pointer(storage, "uint16_t *")
        rows = batch.token_ids.shape[0]
        wanted = range(rows) if batch.wanted is None else batch.wanted.tolist()
        wanted_rows = ffi.new("int32_t[]", list(wanted))
        step = ffi.new("od_step *")
        step.rows, step.num_spans, step.num_wanted = rows, len(storages), len(wanted_rows)
        step.tokens = pointer(batch.token_ids, "int64_t *")
        step.ropes = ropes
        step.spans = spans
        step.wanted = wanted_rows
        step.logits = pointer(logits, "float *")
        self._threads.call(self._native.lib.od_forward, self._model, step)

    def _describe(self, table_of: Sequence[int]) -> tuple[Any, Any]:
        """The model as the kernels read it, and what must live as long as that."""
        config, ffi = self.config, self._native.ffi
        layers = ffi.new("od_layer[]", config.num_layers)
        for index, (target, layer) in enumerate(zip(layers, self._layers, strict=True)):
            target.attention_norm = pointer(layer.attention_norm, "float *")
            target.qk_norm = pointer(layer.qk_norm, "float *")
            target.attention_out_norm = pointer(layer.attention_out_norm, "float *")
            target.mlp_norm = pointer(layer.mlp_norm, "float *")
            target.mlp_out_norm = pointer(layer.mlp_out_norm, "float *")
            for name in ("qkv", "output", "gate_up", "down"):
                getattr(layer, name).describe(getattr(target, name))
            target.window = config.windows[index] or 0
            target.rope = table_of[index]
        model = ffi.new("od_model *")
        model.num_layers = config.num_layers
        model.hidden, model.intermediate = config.hidden_size, config.intermediate_size
        model.vocabulary = config.vocab_size
        model.heads, model.kv_heads = config.num_heads, config.num_kv_heads
        model.head_dim = config.head_dim
        lib = self._native.lib
        model.activation = lib.OD_SILU if config.activation == "silu" else lib.OD_GELU_TANH
        model.eps = config.rms_norm_eps
        model.attention_scale = config.attention_scale
        model.attention_softcap = config.attention_softcap or 0.0
        model.logit_softcap = config.logit_softcap or 0.0
        self._embedding.describe(model.embedding)
        model.embedding_scale = config.embedding_scale
        model.layers = layers
        model.norm = pointer(self._norm, "float *")
        self._head.describe(model.head)
        return model, layers
