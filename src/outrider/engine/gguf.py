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
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from outrider.engine.architecture import ModelConfig
from outrider.engine.gguf_config import ROPE_FACTORS, hf_config
from outrider.engine.gguf_header import GGUFHeader, TensorInfo, mapped_gguf, read_header
from outrider.engine.weights import EMBEDDING, HEAD, NORM, tensor_shapes
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
}
_LAYER_TENSOR: Final = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_DTYPE_NAMES: Final = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_BLOCK_ELEMENTS: Final = 1 << 24  # dequantized at once: 64 MB in float32


def convert_gguf(
    source: Path,
    folder: Path,
    *,
    dtype: torch.dtype,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write `config.json` and `model.safetensors` for the GGUF file `source` into `folder`.

    The folder must exist; what an interrupted conversion leaves in it is of no use, so give a
    temporary one and rename it afterwards.

    Args:
        dtype: of the written weights. float32 is exact for every quantization; bfloat16 is half
            as large.
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
        _convert(data, source, folder, dtype, progress)


def _convert(
    data: mmap.mmap,
    source: Path,
    folder: Path,
    dtype: torch.dtype,
    progress: Callable[[int, int], None] | None,
) -> None:
    header = read_header(data, str(source))
    factors = header.tensors.get(ROPE_FACTORS)
    config_json = hf_config(
        header, str(source), None if factors is None else _frequency_factors(factors, data)
    )
    try:
        config = ModelConfig.from_hf(config_json)
    except CorruptModel as error:
        raise CorruptModel(f"{source}, read as a {error}") from error
    tensors = _hf_tensors(header, config, str(source))

    def blocks(name: str) -> Iterator[np.ndarray[Any, Any]]:
        info = tensors[name]
        return _dequantized(info, data, _row_order(name, info, config))

    config_json["torch_dtype"] = str(dtype).removeprefix("torch.")
    try:
        with (folder / "model.safetensors").open("wb") as output:
            _write_safetensors(output, tensors, dtype, blocks, progress or _ignore)
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
        if name != ROPE_FACTORS:
            tensors[_hf_name(name, source)] = info
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


def _hf_name(name: str, source: str) -> str:
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise UnsupportedModel(f"{source}: tensor {name} is not supported by the engine")
    return f"model.layers.{int(match[1])}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def _write_safetensors(
    output: BinaryIO,
    tensors: dict[str, TensorInfo],
    dtype: torch.dtype,
    blocks: Callable[[str], Iterator[np.ndarray[Any, Any]]],
    progress: Callable[[int, int], None],
) -> None:
    """The format: header length (u64), JSON header, tensors one after the other."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for name, info in tensors.items():
        end = total + int(np.prod(info.shape)) * dtype.itemsize
        entries[name] = {
            "dtype": _DTYPE_NAMES[dtype],
            "shape": info.shape,
            "data_offsets": (total, end),
        }
        total = end
    encoded = json.dumps(entries).encode()
    encoded += b" " * (-len(encoded) % 8)  # readers map the tensors, which wants them aligned
    output.write(len(encoded).to_bytes(8, "little"))
    output.write(encoded)
    written = 0
    for name in tensors:
        for block in blocks(name):
            converted = torch.from_numpy(block).to(dtype)
            written += output.write(converted.reshape(-1).view(torch.uint8).numpy().data)
            progress(written, total)


def _ignore(_written: int, _total: int) -> None:
    """Nobody asked for progress."""


def _dequantized(
    info: TensorInfo, data: mmap.mmap, order: np.ndarray[Any, Any] | None
) -> Iterator[np.ndarray[Any, Any]]:
    """The rows of a tensor in float32, in blocks, in the given order."""
    # A vector, such as a bias, has as many rows as elements: nobody quantizes it in blocks.
    raw = np.frombuffer(data, np.uint8, info.num_bytes, info.offset).reshape(info.shape[0], -1)
    step = max(1, _BLOCK_ELEMENTS * info.shape[0] // math.prod(info.shape))
    for start in range(0, raw.shape[0], step):
        rows = raw[start : start + step] if order is None else raw[order[start : start + step]]
        # A copy: the library may return a view, and torch wants memory it may write to.
        yield np.array(_dequantize(rows, info), dtype=np.float32)


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

    For rotation, llama files pair dimension 2i of a head with 2i + 1, Hugging Face pairs i with
    i + head_dim / 2.
    """
    if config.family == "qwen2" or (".q_proj." not in name and ".k_proj." not in name):
        return None
    rows = np.arange(info.shape[0]).reshape(-1, config.head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def _frequency_factors(info: TensorInfo, data: mmap.mmap) -> list[float]:
    """[head_dim / 2], float32 exactly."""
    blocks = list(_dequantized(info, data, None))
    factors: list[float] = np.concatenate(blocks).reshape(-1).astype(float).tolist()
    return factors
