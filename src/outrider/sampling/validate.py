"""Checks of sampling parameters, with messages that name the value and the remedy."""

import math

from outrider.errors import RequestError
from outrider.types import SamplingParams

__all__ = ["MAX_STOP_TOKEN_IDS", "validate"]

MAX_STOP_TOKEN_IDS = 1024


def validate(params: SamplingParams, *, vocab_size: int) -> None:
    """Raise `RequestError` for the first parameter that has no meaning for this vocabulary."""
    _number("temperature", params.temperature, 0.0, 100.0)
    _number("top_p", params.top_p, 0.0, 1.0, low_open=True)
    _number("min_p", params.min_p, 0.0, 1.0)
    if params.top_k < 0:
        raise RequestError(
            f"top_k is {params.top_k}; use 0 to keep all tokens, or a positive count", param="top_k"
        )
    if params.max_tokens < 1:
        raise RequestError(
            f"max_tokens is {params.max_tokens}; ask for at least 1", param="max_tokens"
        )
    if params.seed is not None and not -(2**63) <= params.seed < 2**64:
        shown = str(params.seed) if abs(params.seed) < 10**30 else "a number of over 30 digits"
        raise RequestError(f"seed is {shown}; it must fit in 64 bits", param="seed")
    if len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise RequestError(
            f"stop_token_ids has {len(params.stop_token_ids)} entries; "
            f"at most {MAX_STOP_TOKEN_IDS} are allowed",
            param="stop_token_ids",
        )
    for token_id in params.stop_token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"stop_token_ids has {token_id}; ids of this model lie in 0..{vocab_size - 1}",
                param="stop_token_ids",
            )


def _number(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    above = value > low if low_open else value >= low
    if math.isfinite(value) and above and value <= high:
        return
    bracket = "(" if low_open else "["
    raise RequestError(f"{name} is {value}; it must lie in {bracket}{low:g}, {high:g}]", param=name)
