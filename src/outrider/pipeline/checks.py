"""What a request may ask of a pipeline, with errors that name the value and the remedy."""

from __future__ import annotations

from collections.abc import Collection

from outrider.errors import ContextLengthExceeded, RequestError
from outrider.targets import CacheUse
from outrider.types import (
    DrafterInfo,
    SamplingParams,
    TargetInfo,
    TokenIds,
    VerificationMethod,
)
from outrider.verify import choose_method

__all__ = ["check_drafter", "check_prompt", "check_verification"]


def check_drafter(name: str | None, max_lookahead: int | None, known: Collection[str]) -> None:
    """Raise `RequestError` for a drafter that is not there, or a lookahead below 0."""
    if max_lookahead is not None and max_lookahead < 0:
        raise RequestError(
            f"max_lookahead is {max_lookahead}; use 0 for plain decoding",
            param="speculation.max_lookahead",
        )
    if name is not None and name not in known:
        names = ", ".join(known) or "none, since this server runs without drafters"
        raise RequestError(
            f"there is no drafter {name[:200]!r}; known are {names}",
            param="speculation.drafter",
        )


def check_verification(
    wanted: VerificationMethod,
    sampling: SamplingParams,
    drafter: DrafterInfo | None,
    *,
    trusted: bool,
) -> None:
    """Raise `RequestError` for a ratio rule that was asked for by name and cannot be kept to."""
    if wanted.ratio and choose_method(sampling, drafter, wanted, trusted=trusted) is not wanted:
        raise RequestError(
            f"verification is {wanted}, which needs a temperature above 0, no seed, and a "
            "draft model in one process with the target, that draws what it declares; leave it "
            "out, or send matching",
            param="speculation.verification",
        )


def check_prompt(
    prompt_ids: TokenIds, sampling: SamplingParams, info: TargetInfo, use: CacheUse | None
) -> None:
    """Raise `RequestError` for a prompt that the target cannot take."""
    if not prompt_ids:
        raise RequestError("the prompt is empty; send at least one token", param="prompt")
    highest, lowest = max(prompt_ids), min(prompt_ids)
    if lowest < 0 or highest >= info.vocab_size:
        illegal = lowest if lowest < 0 else highest
        raise RequestError(
            f"the prompt has token id {illegal}; ids of this model lie in 0..{info.vocab_size - 1}",
            param="prompt",
        )
    asked = f"the prompt has {len(prompt_ids)} tokens and max_tokens is {sampling.max_tokens}"
    wanted = len(prompt_ids) + sampling.max_tokens
    if wanted > info.context_length:
        raise ContextLengthExceeded(
            f"{asked}, together {wanted}; this model's context is {info.context_length}",
            param="max_tokens" if len(prompt_ids) < info.context_length else "prompt",
        )
    if use is not None and wanted > use.tokens:
        raise ContextLengthExceeded(
            f"{asked}, together {wanted}; this server has cache memory for {use.tokens}: ask for "
            "fewer, or serve with a larger --kv-memory",
            param="max_tokens" if len(prompt_ids) < use.tokens else "prompt",
        )
