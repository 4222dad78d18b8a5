"""The weights of a model, read from a Hugging Face folder into the form that the engine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from outrider.engine.architecture import ModelConfig, read_config
from outrider.engine.checkpoint import Checkpoint
from outrider.engine.decoder import Layer, TorchDecoder
from outrider.engine.families import TRAITS
from outrider.engine.fourbit import GROUP, FourBit
from outrider.engine.linear import Linear
from outrider.engine.rope import half_apart
from outrider.engine.shapes import EMBEDDING, HEAD, NORM, layer_shapes, tensor_shapes
from outrider.errors import CorruptModel

__all__ = [
    "Affine",
    "LayerTensors",
    "ModelTensors",
    "Weight",
    "floats",
    "layer_over",
    "load_model",
    "open_tensors",
]


Weight: TypeAlias = Tensor | FourBit
"""[out, in], as the checkpoint has it: floats, or codes of 4 bits."""


class Affine(NamedTuple):
    """`rows @ weight.T + bias`: weight [out, in], bias [out] or none."""

    weight: Weight
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """The tensors of one layer as the engine runs them, whatever the form of the checkpoint.

    Norms are what rows are multiplied by. The dimensions of query and key heads stand in the order
    in which i turns with i + head_dim / 2.

    Attributes:
        attention_norm, mlp_norm: [hidden].
        qkv: to queries, keys and values, in this order.
        output: from the heads back to the residual stream.
        gate_up: to gate and up, in this order.
        down: from the MLP back to the residual stream.
        qk_norm: [heads + kv_heads, head_dim], one row per query head and per key head; None
            without `ModelConfig.qk_norm`.
        attention_out_norm, mlp_out_norm: [hidden], of what attention and MLP give; None without
            `ModelConfig.post_norms`.
    """

    attention_norm: Tensor
    qkv: Affine
    output: Affine
    mlp_norm: Tensor
    gate_up: Affine
    down: Affine
    qk_norm: Tensor | None
    attention_out_norm: Tensor | None
    mlp_out_norm: Tensor | None


class ModelTensors:
    """The tensors of an open checkpoint, as far as they are wanted.

    Every call reads anew and gives copies: a file that changes must not change the model.
    """

    def __init__(
        self, config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device

    def embedding(self) -> Weight:
        """[V, hidden], not yet multiplied by `ModelConfig.embedding_scale`."""
        return self._weight(EMBEDDING, (self.config.vocab_size, self.config.hidden_size))

    def head(self, embedding: Weight) -> Weight:
        """[V, hidden]; `embedding` itself where that serves as the head too."""
        if self.config.tied_head and not self._has_weight(HEAD):
            return embedding
        own = self._weight(HEAD, (self.config.vocab_size, self.config.hidden_size))
        if isinstance(own, FourBit) or isinstance(embedding, FourBit):
            return own
        return embedding if torch.equal(own, embedding) else own

    def norm(self) -> Tensor:
        """[hidden], before the head."""
        return self._norm(NORM, self.config.hidden_size)

    def layers(self) -> Iterator[LayerTensors]:
        """One layer after the other; each is read when it is asked for."""
        shapes = layer_shapes(self.config)
        for index in range(self.config.num_layers):
            yield self._layer(f"model.layers.{index}.", shapes)

    def _layer(self, prefix: str, shapes: dict[str, tuple[int, ...]]) -> LayerTensors:
        config = self.config

        def affine(*names: str) -> Affine:
            weights = [
                self._weight(f"{prefix}{name}.weight", shapes[f"{name}.weight"]) for name in names
            ]
            biases = [
                self._read(f"{prefix}{name}.bias", shapes[f"{name}.bias"])
                for name in names
                if f"{name}.bias" in shapes
            ]
            return Affine(_join(weights), torch.cat(biases) if biases else None)

        def norm(name: str, size: int = config.hidden_size) -> Tensor:
            return self._norm(f"{prefix}{name}.weight", size)

        if TRAITS[config.family].fused:
            qkv, gate_up = affine("self_attn.qkv_proj"), affine("mlp.gate_up_proj")
        else:
            qkv = affine("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
            gate_up = affine("mlp.gate_proj", "mlp.up_proj")
        qk_norm = None
        if config.qk_norm:
            qk_norm = torch.cat(
                (
                    norm("self_attn.q_norm", config.head_dim).expand(config.num_heads, -1),
                    norm("self_attn.k_norm", config.head_dim).expand(config.num_kv_heads, -1),
                )
            )
        post = config.post_norms
        return LayerTensors(
            attention_norm=norm("input_layernorm"),
            qkv=self._half_apart(qkv),
            output=affine("self_attn.o_proj"),
            mlp_norm=norm("pre_feedforward_layernorm" if post else "post_attention_layernorm"),
            gate_up=gate_up,
            down=affine("mlp.down_proj"),
            qk_norm=qk_norm,
            attention_out_norm=norm("post_attention_layernorm") if post else None,
            mlp_out_norm=norm("post_feedforward_layernorm") if post else None,
        )

    def _half_apart(self, qkv: Affine) -> Affine:
        config = self.config
        order = half_apart(config.rope, config.head_dim)
        if order is None:
            return qkv
        rows = torch.arange(qkv.weight.shape[0]).view(-1, config.head_dim)
        turned = config.num_heads + config.num_kv_heads
        rows[:turned] = rows[:turned, order]
        rows = rows.view(-1).to(self._device)
        return Affine(qkv.weight[rows], None if qkv.bias is None else qkv.bias[rows])

    def _norm(self, name: str, size: int) -> Tensor:
        weight = self._read(name, (size,))
        return weight + 1 if TRAITS[self.config.family].gemma else weight

    def _has_weight(self, name: str) -> bool:
        return name in self._checkpoint or f"{name.removesuffix('weight')}codes" in self._checkpoint

    def _weight(self, name: str, shape: tuple[int, ...]) -> Weight:
        stem = name.removesuffix("weight")
        if f"{stem}codes" not in self._checkpoint:
            return self._read(name, shape)
        rows, columns = shape
        if columns % GROUP:
            raise CorruptModel(
                f"{stem}codes: rows of {columns} weights are no whole groups of {GROUP}; fetch the"
                " model again"
            )
        groups = (rows, columns // GROUP)
        codes = self._checkpoint.read(f"{stem}codes", (rows, columns // 2), ("U8",))
        steps = self._checkpoint.read(f"{stem}steps", groups, ("F16",))
        offsets = self._checkpoint.read(f"{stem}offsets", groups, ("F16",))
        return FourBit(*(part.to(self._device, copy=True) for part in (codes, steps, offsets)))

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._checkpoint.read(name, shape)
        return tensor.to(device=self._device, dtype=self._dtype, copy=True)


@contextmanager
def open_tensors(
    folder: Path, *, dtype: torch.dtype, device: torch.device, num_layers: int | None = None
) -> Iterator[ModelTensors]:
    """Open the model in `folder`: `config.json` and `model.safetensors`, whole or sharded.

    Args:
        dtype, device: of the tensors given.
        num_layers: the first so many layers alone.

    Raises:
        UnknownModel: the folder has no config or no weights.
        CorruptModel: a file is damaged, or a tensor missing or of the wrong shape; names both.
            The latter when it is read.
        UnsupportedModel: an architecture, feature or tensor that the engine does not run; names it.
        ValueError: `num_layers` is not between 1 and the layers there are.
    """
    full = read_config(folder)
    config = full if num_layers is None else full.with_layers(num_layers)
    with ExitStack() as stack:
        checkpoint = Checkpoint(folder, stack)
        checkpoint.refuse_unknown(
            _names(full),
            f"a {full.family} model of {full.num_layers} layers",
        )
        yield ModelTensors(config, checkpoint, dtype, device)


def floats(weight: Weight, dtype: torch.dtype) -> Tensor:
    """The weight in a float type."""
    return weight.floats().to(dtype) if isinstance(weight, FourBit) else weight.to(dtype)


def _join(parts: Sequence[Weight]) -> Weight:
    """The outputs of several weights, one after the other; codes if all of them are."""
    if len(parts) == 1:
        return parts[0]
    codes = [part for part in parts if isinstance(part, FourBit)]
    if len(codes) == len(parts):
        return FourBit.join(codes)
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return torch.cat([floats(part, tensors[0].dtype) for part in parts])


def _names(config: ModelConfig) -> set[str]:
    """Every name that a tensor of the model may have."""
    names = tensor_shapes(config).keys() | {HEAD}
    stems = {name.removesuffix("weight") for name in names if name.endswith(".weight")}
    return names | {stem + part for stem in stems for part in ("codes", "steps", "offsets")}


def layer_over(tensors: LayerTensors, linear: Callable[[Affine], Linear]) -> Layer:
    """A layer of the float decoder, its linear layers made by `linear`."""
    return Layer(
        attention_norm=tensors.attention_norm,
        qkv=linear(tensors.qkv),
        output=linear(tensors.output),
        mlp_norm=tensors.mlp_norm,
        gate_up=linear(tensors.gate_up),
        down=linear(tensors.down),
        qk_norm=tensors.qk_norm,
        attention_out_norm=tensors.attention_out_norm,
        mlp_out_norm=tensors.mlp_out_norm,
    )


def load_model(
    folder: Path, *, dtype: torch.dtype, device: torch.device, num_layers: int | None = None
) -> TorchDecoder:
    """Load the model in `folder`, to compute in `dtype`. Arguments and errors: `open_tensors`."""

    def linear(affine: Affine) -> Linear:
        return Linear(floats(affine.weight, dtype), affine.bias)

    with open_tensors(folder, dtype=dtype, device=device, num_layers=num_layers) as tensors:
        weight = tensors.embedding()
        embedding = floats(weight, dtype)
        head = tensors.head(weight)
        return TorchDecoder(
            tensors.config,
            embedding=embedding,
            layers=[layer_over(layer, linear) for layer in tensors.layers()],
            norm=tensors.norm(),
            head=Linear(embedding if head is weight else floats(head, dtype), None),
        )
