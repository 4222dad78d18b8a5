"""What travels between a gateway and a target server, to messages and back.

The messages are those of `proto/target_inference.proto`. Whoever decodes trusts nothing: every
field may be absent, and every number may be any number.
"""

from __future__ import annotations

from typing import Final

from outrider.errors import (
    ContextLengthExceeded,
    OutriderError,
    Overloaded,
    RequestError,
    SessionLost,
    StaleRound,
    TargetFailed,
)
from outrider.rpc import target_inference_pb2 as pb
from outrider.targets.base import NearDraft, OpenRequest
from outrider.types import (
    Capabilities,
    Draft,
    FinishReason,
    LogprobsMode,
    SamplingParams,
    TargetInfo,
    TokenLogprobs,
    Verification,
)

__all__ = [
    "decode_advance",
    "decode_error",
    "decode_info",
    "decode_open",
    "decode_verification",
    "encode_advance",
    "encode_error",
    "encode_info",
    "encode_open",
    "encode_verification",
]

_FINISH: Final = {None: pb.UNFINISHED, FinishReason.STOP: pb.STOP, FinishReason.LENGTH: pb.LENGTH}
_FINISH_OF: Final = {number: reason for reason, number in _FINISH.items()}
_MAX_UINT32: Final = 2**32 - 1


def encode_open(request: OpenRequest) -> pb.Open:
    near = request.near_draft
    return pb.Open(
        epoch=request.epoch,
        prompt_ids=request.prompt_ids,
        output_ids=request.output_ids,
        sampling=_encode_sampling(request.sampling),
        noise_key=request.noise_key,
        choice=request.choice,
        tenant=request.tenant,
        near_draft=None
        if near is None
        else pb.NearDraft(drafter=near.drafter, max_lookahead=near.max_lookahead),
    )


def decode_open(message: pb.Open, session_id: str) -> OpenRequest:
    """The request, with its sampling parameters not yet validated."""
    near = None
    if message.HasField("near_draft"):
        near = NearDraft(message.near_draft.drafter, message.near_draft.max_lookahead)
    return OpenRequest(
        session_id=session_id,
        epoch=message.epoch,
        prompt_ids=tuple(message.prompt_ids),
        output_ids=tuple(message.output_ids),
        sampling=_decode_sampling(message.sampling),
        noise_key=message.noise_key,
        choice=message.choice,
        tenant=message.tenant,
        near_draft=near,
    )


def _encode_sampling(sampling: SamplingParams) -> pb.Sampling:
    allowed = sampling.allowed_token_ids
    return pb.Sampling(
        temperature=sampling.temperature,
        top_k=min(sampling.top_k, _MAX_UINT32),  # more than any vocabulary has
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
        bad_words=[pb.TokenSequence(token_ids=word) for word in sampling.bad_words],
        allowed_token_ids=None if allowed is None else pb.TokenSequence(token_ids=sorted(allowed)),
        min_tokens=sampling.min_tokens,
        logprobs=sampling.logprobs,
        processed_logprobs=sampling.logprobs_mode is LogprobsMode.PROCESSED,
        max_tokens=sampling.max_tokens,
        stop_token_ids=sorted(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
    )


def _decode_sampling(message: pb.Sampling) -> SamplingParams:
    allowed = None
    if message.HasField("allowed_token_ids"):
        allowed = frozenset(message.allowed_token_ids.token_ids)
    processed = message.processed_logprobs
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=dict(message.logit_bias),
        bad_words=tuple(tuple(word.token_ids) for word in message.bad_words),
        allowed_token_ids=allowed,
        min_tokens=message.min_tokens,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        logprobs_mode=LogprobsMode.PROCESSED if processed else LogprobsMode.RAW,
        # The seed has become the noise key, which is all that a target needs of it.
        max_tokens=message.max_tokens,
        stop_token_ids=frozenset(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
    )


def encode_advance(epoch: int, round_id: int, position: int, draft: Draft, run: int) -> pb.Advance:
    return pb.Advance(
        epoch=epoch, round_id=round_id, position=position, token_ids=draft.token_ids, run=run
    )


def decode_advance(message: pb.Advance) -> Draft:
    """The draft; the other fields are plain numbers."""
    return Draft(tuple(message.token_ids), "remote")


def encode_verification(answer: Verification) -> pb.Verified:
    return pb.Verified(
        round_id=answer.round_id,
        position=answer.position,
        token_ids=answer.token_ids,
        drafted=answer.drafted,
        accepted=answer.accepted,
        finish_reason=_FINISH[answer.finish_reason],
        step_us=min(round(answer.step_s * 1e6), _MAX_UINT32),
        batch_size=answer.batch_size,
        batch_tokens=answer.batch_tokens,
        logprobs=[_encode_logprobs(entry) for entry in answer.logprobs or ()],
    )


def decode_verification(message: pb.Verified) -> Verification:
    """Raises `TargetFailed` for an answer that no target gives."""
    if message.finish_reason not in _FINISH_OF:
        raise TargetFailed(
            f"the target server named finish reason {message.finish_reason}, which has no meaning"
        )
    return Verification(
        round_id=message.round_id,
        position=message.position,
        token_ids=tuple(message.token_ids),
        drafted=message.drafted,
        accepted=message.accepted,
        finish_reason=_FINISH_OF[message.finish_reason],
        step_s=message.step_us / 1e6,
        batch_size=max(message.batch_size, 1),
        batch_tokens=max(message.batch_tokens, 1),
        logprobs=tuple(_decode_logprobs(entry) for entry in message.logprobs) or None,
    )


def _encode_logprobs(entry: TokenLogprobs) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        token_id=entry.token_id,
        logprob=entry.logprob,
        top_token_ids=[token_id for token_id, _ in entry.top],
        top_logprobs=[logprob for _, logprob in entry.top],
    )


def _decode_logprobs(message: pb.TokenLogprobs) -> TokenLogprobs:
    top = tuple(zip(message.top_token_ids, message.top_logprobs, strict=False))
    return TokenLogprobs(message.token_id, message.logprob, top)


def encode_info(
    info: TargetInfo, *, max_sessions: int, cache_tokens: int | None
) -> pb.DescribeResponse:
    capabilities = info.capabilities
    return pb.DescribeResponse(
        protocol_version=info.protocol_version,
        model_id=info.model_id,
        model_hash=info.model_hash,
        vocab_size=info.vocab_size,
        vocab_fingerprint=info.vocab_fingerprint,
        eos_token_ids=sorted(info.eos_token_ids),
        context_length=info.context_length,
        dtype=info.dtype or "",
        tokenizer_json=info.tokenizer_json,
        chat_template=info.chat_template,
        special_tokens=info.special_tokens,
        bos_token_id=info.bos_token_id,
        drafters=info.drafters,
        capabilities=pb.Capabilities(
            sampling=capabilities.sampling,
            seeds=capabilities.seeds,
            batch_invariant=capabilities.batch_invariant,
            max_draft_tokens=capabilities.max_draft_tokens,
        ),
        max_sessions=max_sessions,
        cache_tokens=cache_tokens,
    )


def decode_info(message: pb.DescribeResponse) -> TargetInfo:
    """What the server says of its target; see the message for what else it says."""
    has = message.HasField
    return TargetInfo(
        model_id=message.model_id,
        model_hash=message.model_hash,
        vocab_size=message.vocab_size,
        vocab_fingerprint=message.vocab_fingerprint,
        eos_token_ids=frozenset(message.eos_token_ids),
        context_length=message.context_length,
        dtype=message.dtype or None,
        tokenizer_json=message.tokenizer_json if has("tokenizer_json") else None,
        chat_template=message.chat_template if has("chat_template") else None,
        special_tokens=dict(message.special_tokens),
        bos_token_id=message.bos_token_id if has("bos_token_id") else None,
        drafters=tuple(message.drafters),
        capabilities=Capabilities(
            sampling=message.capabilities.sampling,
            seeds=message.capabilities.seeds,
            batch_invariant=message.capabilities.batch_invariant,
            ratios=False,
            max_draft_tokens=message.capabilities.max_draft_tokens,
        ),
        protocol_version=message.protocol_version,
    )


def encode_error(error: OutriderError, *, round_id: int | None = None, epoch: int = 0) -> pb.Failed:
    failed = pb.Failed(reason=_reason(error), message=str(error), round_id=round_id, epoch=epoch)
    if isinstance(error, Overloaded):
        failed.retry_after_s = max(0, error.retry_after_s)
    if isinstance(error, RequestError):
        failed.param, failed.code = error.param or "", error.code
    return failed


def _reason(error: OutriderError) -> pb.Reason:
    match error:
        case ContextLengthExceeded():
            return pb.CONTEXT_LENGTH_EXCEEDED
        case RequestError():
            return pb.INVALID
        case Overloaded():
            return pb.OVERLOADED
        case SessionLost():
            return pb.SESSION_LOST
        case StaleRound():
            return pb.STALE_ROUND
        case _:
            return pb.TARGET_FAILED


def decode_error(message: pb.Failed) -> OutriderError:
    """The error that the server told; an unknown reason is a failed target."""
    text = " ".join(message.message.split())[:1000] or "the target server gave no reason"
    match message.reason:
        case pb.OVERLOADED:
            return Overloaded(text, retry_after_s=message.retry_after_s or 1)
        case pb.SESSION_LOST | pb.DRAINING:
            return SessionLost(text)
        case pb.STALE_ROUND:
            return StaleRound(text)
        case pb.CONTEXT_LENGTH_EXCEEDED:
            return ContextLengthExceeded(text, param=message.param or None)
        case pb.INVALID:
            return RequestError(
                text, param=message.param or None, code=message.code or "invalid_value"
            )
        case _:
            return TargetFailed(text)
