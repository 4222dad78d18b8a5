"""Which rotary position embedding a `config.json` asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from outrider.engine.fields import positive_number, positive_numbers
from outrider.errors import CorruptModel, UnsupportedModel

__all__ = ["RopeConfig"]

_SUPPORTED: Final = ("default", "linear", "llama3", "longrope", "frequency_factors")
_OLD_NAMES: Final = {"su": "longrope"}
_DEFAULT_THETA: Final = 10000.0


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Which rotary embedding a model uses.

    Attributes:
        theta: base of the wavelengths.
        scaling: `default`; `linear` (positions divided by `factor`); `llama3` (long wavelengths
            stretched by `factor`, short ones kept, blended between the two bounds);
            `frequency_factors` (each frequency divided by its own number, as GGUF files state it);
            or `longrope` (the same, and cosines and sines multiplied by `magnitude`).
        factor: of `linear` and `llama3`.
        low_freq_factor, high_freq_factor: of `llama3`.
        original_context_length: of `llama3` and `longrope`.
        frequency_factors: [rotary_dim / 2], of `frequency_factors` and `longrope`.
        magnitude: of `longrope`.
        rotary_dim: how many dimensions of each head are turned, the first ones; None if all are.
    """

    theta: float = _DEFAULT_THETA
    scaling: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context_length: int = 0
    frequency_factors: tuple[float, ...] = ()
    magnitude: float = 1.0
    rotary_dim: int | None = None

    @property
    def longest(self) -> int | None:
        """The most positions that these frequencies are for, if the variant has a limit.

        Beyond its original context, `longrope` has other frequencies for all positions, those
        already cached among them; the engine runs the ones within it.
        """
        return self.original_context_length if self.scaling == "longrope" else None

    @classmethod
    def from_hf(
        cls,
        config: Mapping[str, Any],
        *,
        context_length: int,
        head_dim: int,
        theta: float = _DEFAULT_THETA,
        partial: bool = False,
    ) -> RopeConfig:
        """Read `rope_parameters`, or the older `rope_scaling` with `rope_theta` beside it.

        Args:
            theta: what a missing `rope_theta` means.
            partial: whether a part of each head may be left as it is.

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
        scaling = _OLD_NAMES.get(scaling, scaling)
        if scaling not in _SUPPORTED:
            raise UnsupportedModel(
                f"rope_type {scaling!r} is not supported; the engine runs {', '.join(_SUPPORTED)}"
            )
        if any(isinstance(value, Mapping) for value in parameters.values()):
            raise UnsupportedModel(
                f"rope parameters by layer type ({', '.join(parameters)}) are not supported for"
                f" model_type {config.get('model_type')}"
            )
        theta = positive_number(
            parameters.get("rope_theta") or config.get("rope_theta") or theta, "rope_theta"
        )
        share = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
        rotary_dim = _rotary_dim(share, head_dim, partial)
        rope = cls(theta=theta, scaling=scaling, rotary_dim=rotary_dim)
        match scaling:
            case "linear":
                return replace(rope, factor=positive_number(parameters.get("factor"), "factor"))
            case "llama3":
                original = parameters.get("original_max_position_embeddings", context_length)
                return replace(
                    rope,
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
            case "longrope":
                original = config.get(
                    "original_max_position_embeddings",
                    parameters.get("original_max_position_embeddings"),
                )
                return _longrope(rope, parameters, original, context_length, head_dim)
            case "frequency_factors":
                return _with_factors(rope, parameters.get("factors") or [], "factors", head_dim)
        return rope


def _rotary_dim(share: Any, head_dim: int, partial: bool) -> int | None:
    if share in (None, 1, 1.0):
        return None
    if not partial:
        raise UnsupportedModel(
            f"partial_rotary_factor {share!r} is not supported for this model_type;"
            " the engine rotates whole heads"
        )
    rotary_dim = int(head_dim * positive_number(share, "partial_rotary_factor"))
    if rotary_dim % 2 or not 0 < rotary_dim < head_dim:
        raise CorruptModel(
            f"config.json: partial_rotary_factor {share!r} does not leave an even number of the"
            f" {head_dim} dimensions of a head; fetch the model again"
        )
    return rotary_dim


def _longrope(
    rope: RopeConfig,
    parameters: Mapping[str, Any],
    original: Any,
    context_length: int,
    head_dim: int,
) -> RopeConfig:
    """LongRoPE (Ding et al., 2024) within its original context."""
    original_length = int(positive_number(original, "original_max_position_embeddings"))
    magnitude = parameters.get("attention_factor")
    if magnitude is None:
        factor = parameters.get("factor") or context_length / original_length
        stretch = max(1.0, positive_number(factor, "factor"))
        magnitude = math.sqrt(1 + math.log(stretch) / math.log(original_length))
    rope = replace(
        rope,
        original_context_length=original_length,
        magnitude=positive_number(magnitude, "attention_factor"),
    )
    return _with_factors(rope, parameters.get("short_factor"), "short_factor", head_dim)


def _with_factors(rope: RopeConfig, factors: Any, key: str, head_dim: int) -> RopeConfig:
    numbers = positive_numbers(factors, key)
    count = (rope.rotary_dim or head_dim) // 2
    if len(numbers) != count:
        raise CorruptModel(
            f"config.json: {key} holds {len(numbers)} frequency factors for {count} frequencies;"
            " convert the model again"
        )
    return replace(rope, frequency_factors=numbers)
