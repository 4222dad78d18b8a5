"""Checks of sampling parameters, with messages that name the value and the remedy."""

import math
from collections.abc import Collection

from outrider.errors import RequestError
from outrider.types import SamplingParams

__all__ = [
    "MAX_BAD_WORDS",
    "MAX_BAD_WORD_TOKENS",
    "MAX_LOGIT_BIAS",
    "MAX_STOP_TOKEN_IDS",
    "validate",
]

MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 1024

MAX_BAD_WORD_TOKENS = 8192
"""Tokens of all bad words together: at the worst, so many are compared for every row."""
"""Sequences of ids; a word of a caller may stand for several."""


def validate(params: SamplingParams, *, vocab_size: int) -> None:
    """Raise `RequestError` for the first parameter that has no meaning for this vocabulary.

    Costs about a millisecond per 50,000 ids of `allowed_token_ids`, else next to nothing.
    """
    _check_numbers(params)
    _check_counts(params)
    _check_token_ids(params, vocab_size)


def _check_numbers(params: SamplingParams) -> None:
    _number("temperature", params.temperature, 0.0, 100.0)
    _number("top_p", params.top_p, 0.0, 1.0, low_open=True)
    _number("min_p", params.min_p, 0.0, 1.0)
    _number("repetition_penalty", params.repetition_penalty, 0.01, 10.0)
    _number("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _number("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _at_most("logit_bias", params.logit_bias, MAX_LOGIT_BIAS)
    for token_id, bias in params.logit_bias.items():
        _number(f"logit_bias[{token_id}]", bias, -100.0, 100.0, param="logit_bias")


def _check_counts(params: SamplingParams) -> None:
    if params.top_k < 0:
        raise RequestError(
            f"top_k is {params.top_k}; use 0 to keep all tokens, or a positive count", param="top_k"
        )
    if params.max_tokens < 1:
        raise RequestError(
            f"max_tokens is {params.max_tokens}; ask for at least 1", param="max_tokens"
        )
    if params.min_tokens < 0:
        raise RequestError(
            f"min_tokens is {params.min_tokens}; use 0 to ask for none, or a positive count",
            param="min_tokens",
        )
    if params.min_tokens > params.max_tokens:
        raise RequestError(
            f"min_tokens is {params.min_tokens}, above the {params.max_tokens} of max_tokens; "
            "lower the one or raise the other",
            param="min_tokens",
        )
    if params.logprobs is not None and params.logprobs < 0:
        raise RequestError(
            f"logprobs is {params.logprobs}; use 0 for the output tokens alone, or a positive "
            "count of likely ones beside them",
            param="logprobs",
        )
    if params.seed is not None and not -(2**63) <= params.seed < 2**64:
        shown = str(params.seed) if abs(params.seed) < 10**30 else "a number of over 30 digits"
        raise RequestError(f"seed is {shown}; it must fit in 64 bits", param="seed")


def _check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    _at_most("stop_token_ids", params.stop_token_ids, MAX_STOP_TOKEN_IDS)
    _in_vocabulary("stop_token_ids", params.stop_token_ids, vocab_size)
    _in_vocabulary("logit_bias", params.logit_bias, vocab_size)
    _at_most("bad_words", params.bad_words, MAX_BAD_WORDS)
    size = sum(len(sequence) for sequence in params.bad_words)
    if size > MAX_BAD_WORD_TOKENS:
        raise RequestError(
            f"bad_words have {size} tokens together, spelled with and without a space; at most "
            f"{MAX_BAD_WORD_TOKENS} are taken",
            param="bad_words",
        )
    for sequence in params.bad_words:
        if not sequence:
            raise RequestError(
                "bad_words has a word without tokens; leave it out", param="bad_words"
            )
        _in_vocabulary("bad_words", sequence, vocab_size)
    if params.allowed_token_ids is not None:
        if not params.allowed_token_ids:
            raise RequestError(
                "allowed_token_ids is empty, which allows nothing; name at least one id, or leave "
                "it out",
                param="allowed_token_ids",
            )
        _in_vocabulary("allowed_token_ids", params.allowed_token_ids, vocab_size)


def _in_vocabulary(name: str, token_ids: Collection[int], vocab_size: int) -> None:
    if not token_ids:
        return
    lowest, highest = min(token_ids), max(token_ids)
    if lowest >= 0 and highest < vocab_size:
        return
    raise RequestError(
        f"{name} has {lowest if lowest < 0 else highest}; ids of this model lie in "
        f"0..{vocab_size - 1}",
        param=name,
    )


def _at_most(name: str, entries: Collection[object], limit: int) -> None:
    if len(entries) > limit:
        raise RequestError(
            f"{name} has {len(entries)} entries; at most {limit} are allowed", param=name
        )


def _number(
    name: str,
    value: float,
    low: float,
    high: float,
    *,
    low_open: bool = False,
    param: str | None = None,
) -> None:
    above = value > low if low_open else value >= low
    if math.isfinite(value) and above and value <= high:
        return
    bracket = "(" if low_open else "["
    raise RequestError(
        f"{name} is {value}; it must lie in {bracket}{low:g}, {high:g}]", param=param or name
    )
