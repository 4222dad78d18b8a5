"""Weights of 4 bits as GGUF files hold them, in one form: a code times a step plus an offset.

Formats: Q4_0, Q4_1 and Q4_K of llama.cpp, described in the `gguf` library's `quants` module. Codes
are taken over as they are; Q4_K's steps and offsets, products of two numbers there, are rounded to
float16 here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

__all__ = ["GROUP", "FourBit", "FourBitArrays", "is_four_bit", "unpack_four_bit"]

GROUP: Final = 32
"""Inputs that share a step and an offset."""

_Array: TypeAlias = np.ndarray[Any, Any]
FourBitArrays: TypeAlias = tuple[_Array, _Array, _Array]
"""Codes, steps and offsets as in `FourBit`."""

_SUPER: Final = 256  # weights in a block of Q4_K


@dataclass(frozen=True, slots=True)
class FourBit:
    """A weight [out, in].

    Attributes:
        codes: [out, in / 2] of uint8, the even inputs in the low halves.
        steps, offsets: [out, in / 32] of float16.
    """

    codes: Tensor
    steps: Tensor
    offsets: Tensor

    @classmethod
    def join(cls, parts: Sequence[FourBit]) -> FourBit:
        """The outputs of several weights, one after the other."""
        return cls(
            torch.cat([part.codes for part in parts]),
            torch.cat([part.steps for part in parts]),
            torch.cat([part.offsets for part in parts]),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.codes.shape[0], 2 * self.codes.shape[1]

    def __getitem__(self, rows: Tensor) -> FourBit:
        """The outputs `rows`, in that order."""
        return FourBit(self.codes[rows], self.steps[rows], self.offsets[rows])

    def unpacked(self) -> Tensor:
        """The codes, one a byte: [out, in]."""
        return torch.stack((self.codes & 15, self.codes >> 4), dim=-1).flatten(1)

    def floats(self) -> Tensor:
        """The weight in float32."""
        steps = self.steps.float().repeat_interleave(GROUP, dim=1)
        offsets = self.offsets.float().repeat_interleave(GROUP, dim=1)
        return self.unpacked().float() * steps + offsets


def is_four_bit(quantization: GGMLQuantizationType) -> bool:
    """Whether `unpack_four_bit` reads it."""
    return quantization in _READERS


def unpack_four_bit(rows: _Array, quantization: GGMLQuantizationType) -> FourBitArrays:
    """Raw rows of a GGUF tensor, [out, bytes] of uint8."""
    codes, steps, offsets = _READERS[quantization](rows)
    outputs = rows.shape[0]
    codes = codes.reshape(outputs, -1)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return packed, steps.reshape(outputs, -1), offsets.reshape(outputs, -1)


def _halves(low_then_high: _Array) -> _Array:
    """Blocks of bytes, all low halves before all high ones: [..., n] to [..., 2n]."""
    return np.concatenate((low_then_high & 15, low_then_high >> 4), axis=-1)


def _q4_0(rows: _Array) -> FourBitArrays:
    blocks = rows.reshape(-1, 18)
    steps = np.ascontiguousarray(blocks[:, :2]).view(np.float16)
    return _halves(blocks[:, 2:]), steps, (steps * np.float16(-8))


def _q4_1(rows: _Array) -> FourBitArrays:
    blocks = rows.reshape(-1, 20)
    numbers = np.ascontiguousarray(blocks[:, :4]).view(np.float16)
    return _halves(blocks[:, 4:]), numbers[:, :1], numbers[:, 1:]


def _q4_k(rows: _Array) -> FourBitArrays:
    blocks = rows.reshape(-1, 144)
    numbers = np.ascontiguousarray(blocks[:, :4]).view(np.float16).astype(np.float32)
    packed = blocks[:, 4:16].reshape(-1, 3, 4)
    first, second, third = packed[:, 0], packed[:, 1], packed[:, 2]
    # 6 bits each: those of the first four groups whole, those of the others split in two.
    scales = np.concatenate((first & 63, (third & 15) | (first >> 2 & 0x30)), axis=-1)
    minima = np.concatenate((second & 63, (third >> 4) | (second >> 2 & 0x30)), axis=-1)
    steps = (numbers[:, :1] * scales).astype(np.float16)
    offsets = (-numbers[:, 1:] * minima).astype(np.float16)
    # 32 bytes hold two groups: one in the low halves, the next in the high ones.
    return _halves(blocks[:, 16:].reshape(-1, _SUPER // 64, 32)), steps, offsets


_READERS: Final = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q4_K: _q4_k,
}
