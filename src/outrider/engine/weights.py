"""Loading weights from a local Hugging Face folder: safetensors only, one tensor at a time.

Pickled checkpoints run code when they are opened and are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from outrider.engine.architecture import ModelConfig, read_config
from outrider.engine.decoder import Decoder, Layer
from outrider.engine.linear import Linear
from outrider.errors import CorruptModel, UnknownModel, UnsupportedModel

__all__ = ["EMBEDDING", "HEAD", "NORM", "layer_shapes", "load_model", "tensor_shapes"]

EMBEDDING: Final = "model.embed_tokens.weight"
NORM: Final = "model.norm.weight"
HEAD: Final = "lm_head.weight"

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_DTYPES: Final = ("F32", "F16", "BF16", "F64")
# Recomputed from the config; some old checkpoints carry it along.
_DERIVED: Final = "self_attn.rotary_emb.inv_freq"


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name within a layer, such as `mlp.up_proj.weight`, to shape, of every tensor of one layer."""
    hidden, wide = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.o_bias),
        "mlp.gate_proj": (wide, hidden, config.mlp_bias),
        "mlp.up_proj": (wide, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, wide, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
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


def load_model(
    folder: Path, *, dtype: torch.dtype, device: torch.device, num_layers: int | None = None
) -> Decoder:
    """Load the model in `folder`: `config.json` and `model.safetensors`, whole or sharded.

    Args:
        dtype: what to compute in; weights are converted to it.
        num_layers: load the first so many layers alone.

    Raises:
        UnknownModel: the folder has no config or no weights.
        CorruptModel: a file is damaged, or a tensor missing or of the wrong shape; names both.
        UnsupportedModel: an architecture, feature or tensor that the engine does not run; names it.
        ValueError: `num_layers` is not between 1 and the layers there are.
    """
    full = read_config(folder)
    config = full if num_layers is None else full.with_layers(num_layers)
    with ExitStack() as stack:
        checkpoint = _Checkpoint(folder, full, stack)

        def read(name: str, shape: tuple[int, ...]) -> Tensor:
            # Always a copy: a file that changes must not change the model.
            return checkpoint.read(name, shape).to(device=device, dtype=dtype, copy=True)

        embedding = read(EMBEDDING, (config.vocab_size, config.hidden_size))
        layers = [
            _load_layer(read, f"model.layers.{index}.", config)
            for index in range(config.num_layers)
        ]
        norm = read(NORM, (config.hidden_size,))
        head = embedding
        if HEAD in checkpoint or not config.tied_head:
            own = read(HEAD, (config.vocab_size, config.hidden_size))
            head = embedding if torch.equal(own, embedding) else own
        return Decoder(config, embedding=embedding, layers=layers, norm=norm, head=Linear(head))


def _load_layer(
    read: Callable[[str, tuple[int, ...]], Tensor], prefix: str, config: ModelConfig
) -> Layer:
    shapes = layer_shapes(config)

    def fused(*names: str) -> Linear:
        weight = torch.cat(
            [read(f"{prefix}{name}.weight", shapes[f"{name}.weight"]) for name in names]
        )
        if f"{names[0]}.bias" not in shapes:
            return Linear(weight)
        bias = torch.cat([read(f"{prefix}{name}.bias", shapes[f"{name}.bias"]) for name in names])
        return Linear(weight, bias)

    def norm(name: str) -> Tensor:
        return read(f"{prefix}{name}", shapes[name])

    return Layer(
        attention_norm=norm("input_layernorm.weight"),
        qkv=fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output=fused("self_attn.o_proj"),
        mlp_norm=norm("post_attention_layernorm.weight"),
        gate_up=fused("mlp.gate_proj", "mlp.up_proj"),
        down=fused("mlp.down_proj"),
    )


class _Checkpoint:
    """The tensors of a folder by name, over however many files."""

    def __init__(self, folder: Path, config: ModelConfig, stack: ExitStack) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._file_of: dict[str, str] = {}
        for file in _weight_files(folder):
            path = folder / file
            try:
                opened = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
                names = list(opened.keys())
            except FileNotFoundError as error:
                raise CorruptModel(
                    f"{folder} lacks the weight file {file}; fetch the model again"
                ) from error
            except (OSError, SafetensorError) as error:
                raise CorruptModel(
                    f"{path} is not a whole safetensors file ({error}); fetch the model again"
                ) from error
            self._files[file] = opened
            self._file_of.update(dict.fromkeys(names, file))
        self._refuse_unknown(config)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor, perhaps still in the mapped file."""
        file = self._file_of.get(name)
        if file is None:
            raise CorruptModel(
                f"tensor {name} is missing from {self._folder}; fetch the model again"
            )
        path = self._folder / file
        try:
            header = self._files[file].get_slice(name)
            found, stored = tuple(header.get_shape()), header.get_dtype()
            if found != shape:
                raise CorruptModel(
                    f"{path}: tensor {name} has shape {list(found)} where config.json asks for"
                    f" {list(shape)}; fetch the model again"
                )
            if stored not in _DTYPES:
                raise UnsupportedModel(
                    f"{path}: tensor {name} is stored as {stored}, which is not supported;"
                    f" the engine reads {', '.join(_DTYPES)}"
                )
            tensor: Tensor = self._files[file].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CorruptModel(
                f"{path}: tensor {name} cannot be read ({error}); fetch the model again"
            ) from error
        return tensor

    def _refuse_unknown(self, config: ModelConfig) -> None:
        known = tensor_shapes(config).keys() | {HEAD}
        for name, file in self._file_of.items():
            if name not in known and not name.endswith(_DERIVED):
                raise UnsupportedModel(
                    f"{self._folder / file}: tensor {name!r} is no part of a {config.family}"
                    f" model of {config.num_layers} layers as config.json describes it"
                )


def _weight_files(folder: Path) -> list[str]:
    index = folder / _INDEX
    if index.is_file():
        try:
            files = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptModel(
                f"{index} does not say which file holds which tensor; fetch the model again"
            ) from error
        for file in files:
            # An index is a stranger's: it may not point outside its own folder.
            if not isinstance(file, str) or Path(file).name != file:
                raise CorruptModel(f"{index} names the file {file!r}, which is not in its folder")
        return files
    if (folder / _SINGLE).is_file():
        return [_SINGLE]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise UnsupportedModel(
            f"{folder} holds pickled weights only, which can run code when opened and are refused;"
            f" convert them to {_SINGLE}"
        )
    raise UnknownModel(f"{folder} holds no {_SINGLE} and no {_INDEX}; fetch the model again")
