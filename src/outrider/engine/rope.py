"""Rotary position embedding: its published variants as inverse frequencies, and tables of angles.

Su et al., "RoFormer" (2021). Dimension i of a head is paired with i + head_dim / 2
(see `half_apart`).
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from outrider.engine.rope_config import RopeConfig

__all__ = ["RopeTable", "apply_rope", "half_apart", "inverse_frequencies"]

_FIRST_TABLE: Final = 1024


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position for each pair of dimensions, [head_dim / 2], float32.

    Those of pairs that are not turned are 0, and come last.
    """
    width = rope.rotary_dim or head_dim
    exponents = torch.arange(0, width, 2, dtype=torch.int64).to(torch.float32) / width
    frequencies = 1.0 / (rope.theta**exponents)
    match rope.scaling:
        case "linear":
            frequencies = frequencies / rope.factor
        case "llama3":
            frequencies = _llama3(frequencies, rope)
        case "frequency_factors" | "longrope":
            frequencies = frequencies / torch.tensor(rope.frequency_factors, dtype=torch.float32)
    return functional.pad(frequencies, (0, (head_dim - width) // 2))


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1's stretching, as published with the model."""
    turns = rope.original_context_length * frequencies / (2 * math.pi)  # [rotary_dim / 2]
    width = rope.high_freq_factor - rope.low_freq_factor
    if width <= 0:
        share_kept = (turns >= rope.low_freq_factor).to(torch.float32)
    else:
        share_kept = ((turns - rope.low_freq_factor) / width).clamp(0.0, 1.0)
    return (1 - share_kept) * frequencies / rope.factor + share_kept * frequencies


def half_apart(rope: RopeConfig, head_dim: int) -> Tensor | None:
    """Order of the dimensions of a head in which i turns with i + head_dim / 2, [head_dim].

    None if they are in that order already: where whole heads are turned. Where a part is, the
    published pairs are i and i + rotary_dim / 2, and those beyond have no partner.
    """
    if rope.rotary_dim is None:
        return None
    dimensions = torch.arange(head_dim)
    first, second = dimensions[: rope.rotary_dim].chunk(2)
    before, behind = dimensions[rope.rotary_dim :].chunk(2)
    return torch.cat((first, before, second, behind))


class RopeTable:
    """Cosines and signed sines by position, computed as far as they have been needed."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope, head_dim)
        # Pairs that are not turned keep their length too.
        self._magnitudes = torch.where(self._frequencies == 0, 1.0, rope.magnitude)
        self._device = device
        self._cos = torch.empty(0, head_dim)
        self._sin = torch.empty(0, head_dim)

    def at(self, positions: Tensor, end: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rows for `positions` [N], all below `end`: cosines and sines, each [N, 1, head_dim].

        The first half of the sines is negated, which is what `apply_rope` wants.
        """
        cos, sin = self.tables(end)
        return cos[positions].to(dtype).unsqueeze(1), sin[positions].to(dtype).unsqueeze(1)

    def tables(self, end: int) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of all positions below `end` at least, [positions, head_dim]."""
        if end > self._cos.shape[0]:
            self._grow(end)
        return self._cos, self._sin

    def _grow(self, end: int) -> None:
        length = max(end, 2 * self._cos.shape[0], _FIRST_TABLE)
        # Angles are computed on the CPU on every device, so that all devices rotate alike.
        positions = torch.arange(length, dtype=torch.float32)
        angles = torch.outer(positions, self._frequencies)  # [length, head_dim / 2]
        cos, sin = angles.cos() * self._magnitudes, angles.sin() * self._magnitudes
        self._cos = torch.cat((cos, cos), dim=1).to(self._device)
        self._sin = torch.cat((-sin, sin), dim=1).to(self._device)


def apply_rope(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `heads` [N, heads, head_dim] by the rows that `RopeTable.at` gave."""
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    return torch.addcmul(heads * cos, swapped, sin)
