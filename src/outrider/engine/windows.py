"""Which layers of a model see all tokens, and which a window of the latest ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from outrider.engine.families import TRAITS, Family
from outrider.engine.fields import positive_integer
from outrider.errors import CorruptModel, UnsupportedModel

__all__ = ["windows_of"]

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_MAX_WINDOW_LAYERS: Final = 28
_GEMMA2_PERIOD: Final = 2
_GEMMA3_PERIOD: Final = 6


def windows_of(
    config: Mapping[str, Any], family: Family, num_layers: int
) -> tuple[int | None, ...]:
    """Of each layer: how many tokens a token sees there, itself included; None for all.

    Raises:
        UnsupportedModel: a kind of layer that the engine, or the family, does not have; names it.
        CorruptModel: an impossible window, or not one kind per layer.
    """
    window = _window(config, family)
    expected = _kinds(config, family, num_layers, window)
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = expected
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise CorruptModel(
            f"config.json: layer_types {kinds!r} is not a list of words; fetch the model again"
        )
    known = set(expected)
    if TRAITS[family].layered_windows:
        known = {_FULL} if window is None else {_FULL, _SLIDING}
    if not set(kinds) <= known:
        raise UnsupportedModel(
            f"layer_types {sorted(set(kinds))} with sliding_window {window} is not supported for"
            f" model_type {family}; the engine runs {' and '.join(sorted(known))} there"
        )
    if len(kinds) != num_layers:
        raise CorruptModel(
            f"config.json: {len(kinds)} layer_types for {num_layers} layers; fetch the model again"
        )
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _window(config: Mapping[str, Any], family: Family) -> int | None:
    window = config.get("sliding_window", TRAITS[family].window)
    match family:
        case "llama":
            return None
        case "qwen2" | "qwen3" if not config.get("use_sliding_window", False):
            return None
    if window is not None and (not isinstance(window, int) or window <= 0):
        raise CorruptModel(
            f"config.json: sliding_window {window!r} is not a positive number;"
            " fetch the model again"
        )
    return window


def _kinds(
    config: Mapping[str, Any], family: Family, num_layers: int, window: int | None
) -> list[str]:
    """What the layers are if `layer_types` does not say it."""
    layers = range(num_layers)
    if window is None:
        return [_FULL for _ in layers]
    match family:
        case "qwen2" | "qwen3":
            first = config.get("max_window_layers", _MAX_WINDOW_LAYERS)
            if not isinstance(first, int):
                raise CorruptModel(
                    f"config.json: max_window_layers {first!r} is not a whole number;"
                    " fetch the model again"
                )
            return [_SLIDING if layer >= first else _FULL for layer in layers]
        case "gemma2" | "gemma3_text":
            period = _GEMMA2_PERIOD
            if family == "gemma3_text":
                period = positive_integer(config, "sliding_window_pattern", _GEMMA3_PERIOD)
            return [_SLIDING if (layer + 1) % period else _FULL for layer in layers]
    return [_SLIDING for _ in layers]
