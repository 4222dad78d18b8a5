"""Values of a `config.json`, read and checked. `CorruptModel` names the key and what it held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.errors import CorruptModel

__all__ = [
    "optional_number",
    "positive_integer",
    "positive_number",
    "positive_numbers",
    "token_ids",
]


def positive_number(value: Any, key: str) -> float:
    """`value` of the config's `key`. Raises CorruptModel if it is anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise CorruptModel(
            f"config.json: {key} {value!r} is not a positive number; fetch the model again"
        )
    return float(value)


def positive_numbers(value: Any, key: str) -> tuple[float, ...]:
    """`value` of the config's `key`, a list. Raises CorruptModel if it is anything else."""
    if not isinstance(value, list):
        raise CorruptModel(f"config.json: {key} {value!r} is not a list; fetch the model again")
    return tuple(positive_number(number, key) for number in value)


def optional_number(value: Any, key: str) -> float | None:
    """A positive number, or None for null. Raises CorruptModel if it is anything else."""
    return None if value is None else positive_number(value, key)


def positive_integer(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """The config's `key`, a whole number. Raises CorruptModel if it is anything else."""
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise CorruptModel(
            f"config.json: {key} {value!r} is not a positive whole number; fetch the model again"
        )
    return value


def token_ids(config: Mapping[str, Any], key: str) -> frozenset[int]:
    """None, one or many ids. Raises CorruptModel if they are anything else."""
    value = config.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) for token in ids):
        raise CorruptModel(
            f"config.json: {key} {value!r} is not one or more token ids; fetch the model again"
        )
    return frozenset(ids)
