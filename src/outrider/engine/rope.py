"""Rotary position embedding: its published variants as inverse frequencies, and tables of angles.

Su et al., "RoFormer" (2021). Dimension i of a head is paired with i + head_dim / 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from outrider.errors import CorruptModel, UnsupportedModel

__all__ = ["RopeConfig", "RopeTable", "apply_rope", "inverse_frequencies", "positive_number"]

_SUPPORTED: Final = ("default", "linear", "llama3", "frequency_factors")
_DEFAULT_THETA: Final = 10000.0
_FIRST_TABLE: Final = 1024


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Which rotary embedding a model uses.

    Attributes:
        theta: base of the wavelengths.
        scaling: `default`; `linear` (positions divided by `factor`); `llama3` (long wavelengths
            stretched by `factor`, short ones kept, blended between the two bounds); or
            `frequency_factors` (each frequency divided by its own number, as GGUF files state it).
        factor: of `linear` and `llama3`.
        low_freq_factor, high_freq_factor, original_context_length: of `llama3`.
        frequency_factors: [head_dim / 2], of `frequency_factors`.
    """

    theta: float = _DEFAULT_THETA
    scaling: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context_length: int = 0
    frequency_factors: tuple[float, ...] = ()

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any], *, context_length: int, head_dim: int
    ) -> RopeConfig:
        """Read `rope_parameters`, or the older `rope_scaling` with `rope_theta` beside it.

        Raises:
            UnsupportedModel: a variant that the engine does not run; names it.
            CorruptModel: a parameter of the variant is missing or impossible.
        """
        # Both forms may stand in one file; the older one wins there, as in transformers.
        parameters = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(parameters, Mapping):
            raise CorruptModel(
                f"config.json: rope parameters {parameters!r} are not an object;"
                " fetch the model again"
            )
        scaling = parameters.get("rope_type", parameters.get("type", "default"))
        if scaling not in _SUPPORTED:
            nested = " (parameters by layer type)" if _is_nested(parameters) else ""
            raise UnsupportedModel(
                f"rope_type {scaling!r}{nested} is not supported;"
                f" the engine runs {', '.join(_SUPPORTED)}"
            )
        if _is_nested(parameters):
            raise UnsupportedModel(
                f"rope parameters by layer type ({', '.join(parameters)}) are not supported;"
                " the engine runs one rotary embedding in every layer"
            )
        rotated = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
        if rotated not in (None, 1, 1.0):
            raise UnsupportedModel(
                f"partial_rotary_factor {rotated!r} is not supported;"
                " the engine rotates whole heads"
            )
        theta = parameters.get("rope_theta") or config.get("rope_theta") or _DEFAULT_THETA
        rope = cls(theta=positive_number(theta, "rope_theta"), scaling=scaling)
        match scaling:
            case "linear":
                return cls(
                    rope.theta, scaling, factor=positive_number(parameters.get("factor"), "factor")
                )
            case "llama3":
                original = parameters.get("original_max_position_embeddings", context_length)
                return cls(
                    rope.theta,
                    scaling,
                    factor=positive_number(parameters.get("factor"), "factor"),
                    low_freq_factor=positive_number(
                        parameters.get("low_freq_factor"), "low_freq_factor"
                    ),
                    high_freq_factor=positive_number(
                        parameters.get("high_freq_factor"), "high_freq_factor"
                    ),
                    original_context_length=int(
                        positive_number(original, "original_max_position_embeddings")
                    ),
                )
            case "frequency_factors":
                factors = parameters.get("factors") or ()
                if len(factors) != head_dim // 2:
                    raise CorruptModel(
                        f"config.json: {len(factors)} frequency factors for {head_dim // 2}"
                        " frequencies; convert the model again"
                    )
                return cls(
                    rope.theta,
                    scaling,
                    frequency_factors=tuple(
                        positive_number(factor, "factors") for factor in factors
                    ),
                )
        return rope


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position for each pair of dimensions, [head_dim / 2], float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    match rope.scaling:
        case "linear":
            return frequencies / rope.factor
        case "llama3":
            return _llama3(frequencies, rope)
        case "frequency_factors":
            return frequencies / torch.tensor(rope.frequency_factors, dtype=torch.float32)
    return frequencies


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1's stretching, as published with the model."""
    turns = rope.original_context_length * frequencies / (2 * math.pi)  # [head_dim / 2]
    width = rope.high_freq_factor - rope.low_freq_factor
    if width <= 0:
        share_kept = (turns >= rope.low_freq_factor).to(torch.float32)
    else:
        share_kept = ((turns - rope.low_freq_factor) / width).clamp(0.0, 1.0)
    return (1 - share_kept) * frequencies / rope.factor + share_kept * frequencies


class RopeTable:
    """Cosines and signed sines by position, computed as far as they have been needed."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope, head_dim)
        self._device = device
        self._cos = torch.empty(0, head_dim)
        self._sin = torch.empty(0, head_dim)

    def at(self, positions: Tensor, end: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rows for `positions` [N], all below `end`: cosines and sines, each [N, 1, head_dim].

        The first half of the sines is negated, which is what `apply_rope` wants.
        """
        if end > self._cos.shape[0]:
            self._grow(end)
        return (
            self._cos[positions].to(dtype).unsqueeze(1),
            self._sin[positions].to(dtype).unsqueeze(1),
        )

    def _grow(self, end: int) -> None:
        length = max(end, 2 * self._cos.shape[0], _FIRST_TABLE)
        # Angles are computed on the CPU on every device, so that all devices rotate alike.
        positions = torch.arange(length, dtype=torch.float32)
        angles = torch.outer(positions, self._frequencies)  # [length, head_dim / 2]
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat((cos, cos), dim=1).to(self._device)
        self._sin = torch.cat((-sin, sin), dim=1).to(self._device)


def apply_rope(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `heads` [N, heads, head_dim] by the rows that `RopeTable.at` gave."""
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    return torch.addcmul(heads * cos, swapped, sin)


def _is_nested(parameters: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Mapping) for value in parameters.values())


def positive_number(value: Any, key: str) -> float:
    """`value` of the config's `key`. Raises CorruptModel if it is anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise CorruptModel(
            f"config.json: {key} {value!r} is not a positive number; fetch the model again"
        )
    return float(value)
