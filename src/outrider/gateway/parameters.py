"""From the fields of a request to sampling parameters; `sampling.validate` then checks ranges."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from outrider.errors import RequestError
from outrider.gateway.prompts import off_loop
from outrider.gateway.schemas import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    SpeculationOptions,
)
from outrider.gateway.service import Service
from outrider.sampling import MAX_LOGIT_BIAS
from outrider.types import LogprobsMode, SamplingParams, TokenIds, VerificationMethod

__all__ = ["sampling_of", "stops_of", "verification_of"]

_MAX_STOPS = 16
_MAX_STOP_CHARS = 1024
_MAX_WORDS = 256
_MAX_WORD_CHARS = 256

_CALL_CHARS = 16
"""What a call of the tokenizer costs beside its text, in characters."""

_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_VERIFICATIONS: Final = (
    VerificationMethod.MATCHING,
    VerificationMethod.TOKEN,
    VerificationMethod.BLOCK,
)


async def sampling_of(service: Service, request: ChatRequest | CompletionRequest) -> SamplingParams:
    """What a request asks for, but `max_tokens`, which hangs on the prompt.

    Ranges are checked here only where that takes the server's settings or the caller's spelling.

    Raises:
        RequestError: a field has no meaning.
    """
    if request.top_k is not None and request.top_k < -1:
        raise RequestError(
            f"top_k is {request.top_k}; use 0 or -1 to keep all tokens, or a positive count",
            param="top_k",
        )
    allowed = request.allowed_token_ids
    return SamplingParams(
        temperature=_or(request.temperature, 1.0),
        top_k=max(request.top_k or 0, 0),
        top_p=_or(request.top_p, 1.0),
        min_p=request.min_p or 0.0,
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=_biases(request.logit_bias or {}),
        bad_words=await _sequences(service, request.bad_words or ()),
        allowed_token_ids=None if allowed is None else frozenset(allowed),
        min_tokens=request.min_tokens or 0,
        logprobs=_logprobs(request, service.settings.limits.max_logprobs),
        logprobs_mode=_mode(request),
        seed=request.seed,
        stop_token_ids=frozenset(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
    )


def stops_of(request: GenerationRequest) -> list[str]:
    """The stop strings. Raises `RequestError` for too many or too long ones."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > _MAX_STOPS:
        raise RequestError(
            f"stop has {len(stops)} strings; at most {_MAX_STOPS} are taken", param="stop"
        )
    for string in stops:
        if len(string) > _MAX_STOP_CHARS:
            raise RequestError(
                f"stop has a string of {len(string)} characters; at most {_MAX_STOP_CHARS} "
                "are taken",
                param="stop",
            )
    return stops


def verification_of(options: SpeculationOptions) -> VerificationMethod | None:
    """How drafts shall be judged; None leaves it to the server. Raises `RequestError`."""
    if options.verification is None:
        return None
    if options.verification not in _VERIFICATIONS:
        raise _no_choice("speculation.verification", options.verification, _VERIFICATIONS)
    return VerificationMethod(options.verification)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _biases(given: Mapping[str, float]) -> dict[int, float]:
    if len(given) > MAX_LOGIT_BIAS:
        raise RequestError(
            f"logit_bias has {len(given)} entries; at most {MAX_LOGIT_BIAS} are allowed",
            param="logit_bias",
        )
    for key in given:
        if _ID.fullmatch(key) is None:
            raise RequestError(
                f"logit_bias has the key {key[:40]!r}; keys are token ids in decimal, such as "
                '"50" (ask /tokenize for them)',
                param="logit_bias",
            )
    return {int(key): bias for key, bias in given.items()}


def _logprobs(request: ChatRequest | CompletionRequest, limit: int) -> int | None:
    """How many likely tokens are told of beside each output token; None if nothing is."""
    if isinstance(request, CompletionRequest):
        name, count, wanted = "logprobs", request.logprobs, request.logprobs is not None
    else:
        name, count, wanted = "top_logprobs", request.top_logprobs, bool(request.logprobs)
    if count is not None and not 0 <= count <= limit:
        raise RequestError(
            f"{name} is {count}; it must lie in 0..{limit} (limits.max_logprobs)", param=name
        )
    if count and not wanted:
        raise RequestError(
            f"{name} is {count} but logprobs is not true; set logprobs to true or leave {name} out",
            param=name,
        )
    return (count or 0) if wanted else None


def _mode(request: GenerationRequest) -> LogprobsMode:
    if request.logprobs_mode is None:
        return LogprobsMode.RAW
    if request.logprobs_mode not in tuple(LogprobsMode):
        raise _no_choice("logprobs_mode", request.logprobs_mode, tuple(LogprobsMode))
    return LogprobsMode(request.logprobs_mode)


async def _sequences(service: Service, words: Sequence[str]) -> tuple[TokenIds, ...]:
    """The ids of each word, at the beginning of a text and behind a space."""
    if len(words) > _MAX_WORDS:
        raise RequestError(
            f"bad_words has {len(words)} words; at most {_MAX_WORDS} are taken", param="bad_words"
        )
    for index, word in enumerate(words):
        if not word.strip(" "):
            raise RequestError(
                f"bad_words[{index}] is {word[:40]!r}; name a word, or leave it out",
                param=f"bad_words[{index}]",
            )
        if len(word) > _MAX_WORD_CHARS:
            raise RequestError(
                f"bad_words[{index}] has {len(word)} characters; at most {_MAX_WORD_CHARS} "
                "are taken",
                param=f"bad_words[{index}]",
            )
    bare = [word.removeprefix(" ") for word in words]
    texts = list(dict.fromkeys(text for word in bare for text in (word, f" {word}")))

    def work() -> list[TokenIds]:
        encode = service.tokenizer.encode
        return [tuple(encode(text, add_special_tokens=False)) for text in texts]

    size = sum(_CALL_CHARS + len(text) for text in texts)
    try:
        return tuple(dict.fromkeys(await off_loop(size, work)))
    except RequestError as error:
        error.param = "bad_words"
        raise


def _no_choice(name: str, value: str, choices: Sequence[str]) -> RequestError:
    return RequestError(f"{name} is {value[:80]!r}; use {' or '.join(choices)}", param=name)
