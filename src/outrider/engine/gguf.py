"""GGUF files, converted once into a Hugging Face folder that the engine then loads like any other.

Weights are dequantized and written as a stream, a block of rows at a time, so that a model larger
than memory can be converted too.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import re
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from outrider.engine.architecture import ModelConfig
from outrider.engine.families import TRAITS
from outrider.engine.fourbit import GROUP, FourBitArrays, is_four_bit, unpack_four_bit
from outrider.engine.gguf_config import ROPE_FACTORS, hf_config
from outrider.engine.gguf_header import GGUFHeader, TensorInfo, mapped_gguf, read_header
from outrider.engine.shapes import EMBEDDING, HEAD, NORM, tensor_shapes
from outrider.engine.stream import Entry, write_safetensors
from outrider.errors import CorruptModel, FetchFailed, UnsupportedModel

__all__ = ["convert_gguf"]

_GLOBAL_NAMES: Final = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": NORM,
    "output.weight": HEAD,
}
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_FUSED_NAMES: Final = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_POST_NORM_NAMES: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_TENSOR: Final = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_DTYPE_NAMES: Final = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_BLOCK_ELEMENTS: Final = 1 << 24  # dequantized at once: 64 MB in float32


def convert_gguf(
    source: Path,
    folder: Path,
    *,
    dtype: torch.dtype,
    keep_four_bit: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write `config.json` and `model.safetensors` for the GGUF file `source` into `folder`.

    The folder must exist; what an interrupted conversion leaves in it is of no use, so give a
    temporary one and rename it afterwards.

    Args:
        dtype: of the written weights. float32 is exact for every quantization; bfloat16 is half
            as large.
        keep_four_bit: write the matrices that have 4 bits a weight as they are: a tensor
            NAME.weight becomes NAME.codes, NAME.steps and NAME.offsets; see `FourBit`.
        progress: called with bytes written so far and bytes to write.

    Raises:
        UnknownModel: no such file.
        CorruptModel: not a GGUF file, damaged, truncated, or without something a model needs.
        UnsupportedModel: an architecture, feature, tensor or quantization not supported; names it.
        FetchFailed: the folder cannot be written to, or the disk is full.
        ValueError: a dtype other than float32, float16 and bfloat16.
    """
    if dtype not in _DTYPE_NAMES:
        raise ValueError(f"weights are written as float32, float16 or bfloat16, not {dtype}")
    with mapped_gguf(source) as data:
        _convert(data, source, folder, dtype, keep_four_bit, progress)


def _convert(
    data: mmap.mmap,
    source: Path,
    folder: Path,
    dtype: torch.dtype,
    keep_four_bit: bool,
    progress: Callable[[int, int], None] | None,
) -> None:
    header = read_header(data, str(source))
    factors = {
        name: _numbers(header.tensors[name], data)
        for name in ROPE_FACTORS
        if name in header.tensors
    }
    config_json = hf_config(header, str(source), factors)
    try:
        config = ModelConfig.from_hf(config_json)
    except CorruptModel as error:
        raise CorruptModel(f"{source}, read as a {error}") from error
    tensors = _hf_tensors(header, config, str(source))

    def blocks(name: str) -> Iterator[np.ndarray[Any, Any]]:
        info = tensors[name]
        rows = _dequantized(info, data, _row_order(name, info, config))
        # Here the files hold what rows are multiplied by, Hugging Face one less.
        if TRAITS[config.family].gemma and name.endswith("norm.weight"):
            return (block - 1 for block in rows)
        return rows

    @lru_cache(maxsize=1)  # its three parts are written one after the other
    def codes(name: str) -> FourBitArrays:
        info = tensors[name]
        raw, order = _raw(info, data), _row_order(name, info, config)
        return unpack_four_bit(raw if order is None else raw[order], info.quantization)

    config_json["torch_dtype"] = str(dtype).removeprefix("torch.")
    try:
        with (folder / "model.safetensors").open("wb") as output:
            entries = _entries(tensors, dtype, blocks, codes if keep_four_bit else None)
            write_safetensors(output, entries, progress or _ignore)
        (folder / "config.json").write_text(json.dumps(config_json, indent=2) + "\n")
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some disk space" if full else "check that it exists and may be written"
        raise FetchFailed(
            f"the converted model cannot be written to {folder} ({error.strerror}); {remedy}"
        ) from error


def _hf_tensors(header: GGUFHeader, config: ModelConfig, source: str) -> dict[str, TensorInfo]:
    """Hugging Face name to tensor, complete and of the right shapes."""
    tensors: dict[str, TensorInfo] = {}
    for name, info in header.tensors.items():
        if name not in ROPE_FACTORS:
            tensors[_hf_name(name, config, source)] = info
    expected = tensor_shapes(config)
    for hf_name, info in tensors.items():
        if hf_name not in expected:
            raise UnsupportedModel(
                f"{source}: tensor {info.name} is no part of a {config.family} model of"
                f" {config.num_layers} layers as its metadata describes it"
            )
        if info.shape != expected[hf_name]:
            raise CorruptModel(
                f"{source}: tensor {info.name} has shape {list(info.shape)} where the metadata asks"
                f" for {list(expected[hf_name])}; fetch the model again"
            )
    missing = expected.keys() - tensors.keys()
    if missing:
        raise CorruptModel(
            f"{source}: there is no tensor for {min(missing)}; fetch the model again"
        )
    return tensors


def _hf_name(name: str, config: ModelConfig, source: str) -> str:
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    names = _LAYER_NAMES
    if TRAITS[config.family].fused:
        names = names | _FUSED_NAMES
    if config.post_norms:
        names = names | _POST_NORM_NAMES
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in names:
        raise UnsupportedModel(f"{source}: tensor {name} is not supported by the engine")
    return f"model.layers.{int(match[1])}.{names[match[2]]}.{match[3]}"


def _entries(
    tensors: dict[str, TensorInfo],
    dtype: torch.dtype,
    blocks: Callable[[str], Iterator[np.ndarray[Any, Any]]],
    codes: Callable[[str], FourBitArrays] | None,
) -> dict[str, Entry]:
    """What is written of each tensor; `codes` gives those of 4 bits that stay so."""

    def converted(name: str) -> Iterator[np.ndarray[Any, Any]]:
        for block in blocks(name):
            yield torch.from_numpy(block).to(dtype).reshape(-1).view(torch.uint8).numpy()

    entries: dict[str, Entry] = {}
    for name, info in tensors.items():
        if codes is None or not is_four_bit(info.quantization):
            entries[name] = Entry(_DTYPE_NAMES[dtype], info.shape, partial(converted, name))
            continue
        stem = name.removesuffix("weight")
        rows, columns = info.shape
        shapes = ((rows, columns // 2), (rows, columns // GROUP), (rows, columns // GROUP))
        for part, (kind, stored, shape) in enumerate(
            zip(("codes", "steps", "offsets"), ("U8", "F16", "F16"), shapes, strict=True)
        ):
            entries[stem + kind] = Entry(stored, shape, partial(_part, codes, name, part))
    return entries


def _part(
    codes: Callable[[str], FourBitArrays], name: str, part: int
) -> Iterator[np.ndarray[Any, Any]]:
    yield np.ascontiguousarray(codes(name)[part]).reshape(-1).view(np.uint8)


def _ignore(_written: int, _total: int) -> None:
    """Nobody asked for progress."""


def _dequantized(
    info: TensorInfo, data: mmap.mmap, order: np.ndarray[Any, Any] | None
) -> Iterator[np.ndarray[Any, Any]]:
    """The rows of a tensor in float32, in blocks, in the given order."""
    raw = _raw(info, data)
    step = max(1, _BLOCK_ELEMENTS * info.shape[0] // math.prod(info.shape))
    for start in range(0, raw.shape[0], step):
        rows = raw[start : start + step] if order is None else raw[order[start : start + step]]
        # A copy: the library may return a view, and torch wants memory it may write to.
        yield np.array(_dequantize(rows, info), dtype=np.float32)


def _raw(info: TensorInfo, data: mmap.mmap) -> np.ndarray[Any, Any]:
    """The bytes of a tensor by rows."""
    # A vector, such as a bias, has as many rows as elements: nobody quantizes it in blocks.
    return np.frombuffer(data, np.uint8, info.num_bytes, info.offset).reshape(info.shape[0], -1)


def _dequantize(rows: np.ndarray[Any, Any], info: TensorInfo) -> np.ndarray[Any, Any]:
    if info.quantization == GGMLQuantizationType.F64:
        return np.ascontiguousarray(rows).view(np.float64)
    try:
        return dequantize(np.ascontiguousarray(rows), info.quantization)
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"tensor {info.name} has the quantization {info.quantization.name}, which the gguf"
            " library cannot read; use another quantization of the model"
        ) from error


def _row_order(name: str, info: TensorInfo, config: ModelConfig) -> np.ndarray[Any, Any] | None:
    """Where the rows of a query or key projection come from.

    For rotation, llama's files pair dimension 2i of a head with 2i + 1, Hugging Face pairs i with
    i + head_dim / 2.
    """
    if config.family not in ("llama", "mistral"):
        return None
    if ".q_proj." not in name and ".k_proj." not in name:
        return None
    rows = np.arange(info.shape[0]).reshape(-1, config.head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def _numbers(info: TensorInfo, data: mmap.mmap) -> list[float]:
    """A vector, float32 exactly."""
    blocks = list(_dequantized(info, data, None))
    numbers: list[float] = np.concatenate(blocks).reshape(-1).astype(float).tolist()
    return numbers
