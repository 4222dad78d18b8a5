from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNFINISHED: _ClassVar[FinishReason]
    STOP: _ClassVar[FinishReason]
    LENGTH: _ClassVar[FinishReason]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[Reason]
    OVERLOADED: _ClassVar[Reason]
    SESSION_LOST: _ClassVar[Reason]
    STALE_ROUND: _ClassVar[Reason]
    INVALID: _ClassVar[Reason]
    CONTEXT_LENGTH_EXCEEDED: _ClassVar[Reason]
    TARGET_FAILED: _ClassVar[Reason]
    DRAINING: _ClassVar[Reason]
UNFINISHED: FinishReason
STOP: FinishReason
LENGTH: FinishReason
UNKNOWN: Reason
OVERLOADED: Reason
SESSION_LOST: Reason
STALE_ROUND: Reason
INVALID: Reason
CONTEXT_LENGTH_EXCEEDED: Reason
TARGET_FAILED: Reason
DRAINING: Reason

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("protocol_version", "model_id", "model_hash", "vocab_size", "vocab_fingerprint", "eos_token_ids", "context_length", "dtype", "tokenizer_json", "chat_template", "special_tokens", "bos_token_id", "capabilities", "drafters", "max_sessions", "cache_tokens")
    class SpecialTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_JSON_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model_id: str
    model_hash: str
    vocab_size: int
    vocab_fingerprint: str
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    context_length: int
    dtype: str
    tokenizer_json: str
    chat_template: str
    special_tokens: _containers.ScalarMap[str, str]
    bos_token_id: int
    capabilities: Capabilities
    drafters: _containers.RepeatedScalarFieldContainer[str]
    max_sessions: int
    cache_tokens: int
    def __init__(self, protocol_version: _Optional[int] = ..., model_id: _Optional[str] = ..., model_hash: _Optional[str] = ..., vocab_size: _Optional[int] = ..., vocab_fingerprint: _Optional[str] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., context_length: _Optional[int] = ..., dtype: _Optional[str] = ..., tokenizer_json: _Optional[str] = ..., chat_template: _Optional[str] = ..., special_tokens: _Optional[_Mapping[str, str]] = ..., bos_token_id: _Optional[int] = ..., capabilities: _Optional[_Union[Capabilities, _Mapping]] = ..., drafters: _Optional[_Iterable[str]] = ..., max_sessions: _Optional[int] = ..., cache_tokens: _Optional[int] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("sampling", "seeds", "batch_invariant", "max_draft_tokens")
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    BATCH_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sampling: bool
    seeds: bool
    batch_invariant: bool
    max_draft_tokens: int
    def __init__(self, sampling: _Optional[bool] = ..., seeds: _Optional[bool] = ..., batch_invariant: _Optional[bool] = ..., max_draft_tokens: _Optional[int] = ...) -> None: ...

class ValidationRequest(_message.Message):
    __slots__ = ("tokens", "validation_offset")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_OFFSET_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    validation_offset: int
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., validation_offset: _Optional[int] = ...) -> None: ...

class ValidationResponse(_message.Message):
    __slots__ = ("flat_logits", "vocab_size")
    FLAT_LOGITS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    flat_logits: _containers.RepeatedScalarFieldContainer[float]
    vocab_size: int
    def __init__(self, flat_logits: _Optional[_Iterable[float]] = ..., vocab_size: _Optional[int] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("actions",)
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    actions: _containers.RepeatedCompositeFieldContainer[Action]
    def __init__(self, actions: _Optional[_Iterable[_Union[Action, _Mapping]]] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("session", "open", "advance", "cancel", "release")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    session: int
    open: Open
    advance: Advance
    cancel: Cancel
    release: Release
    def __init__(self, session: _Optional[int] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., advance: _Optional[_Union[Advance, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("epoch", "prompt_ids", "output_ids", "sampling", "noise_key", "choice", "tenant", "near_draft")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    NOISE_KEY_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NEAR_DRAFT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    output_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    noise_key: int
    choice: int
    tenant: str
    near_draft: NearDraft
    def __init__(self, epoch: _Optional[int] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., output_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., noise_key: _Optional[int] = ..., choice: _Optional[int] = ..., tenant: _Optional[str] = ..., near_draft: _Optional[_Union[NearDraft, _Mapping]] = ...) -> None: ...

class NearDraft(_message.Message):
    __slots__ = ("drafter", "max_lookahead")
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_LOOKAHEAD_FIELD_NUMBER: _ClassVar[int]
    drafter: str
    max_lookahead: int
    def __init__(self, drafter: _Optional[str] = ..., max_lookahead: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words", "allowed_token_ids", "min_tokens", "logprobs", "processed_logprobs", "max_tokens", "stop_token_ids", "ignore_eos")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    bad_words: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    allowed_token_ids: TokenSequence
    min_tokens: int
    logprobs: int
    processed_logprobs: bool
    max_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., bad_words: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., allowed_token_ids: _Optional[_Union[TokenSequence, _Mapping]] = ..., min_tokens: _Optional[int] = ..., logprobs: _Optional[int] = ..., processed_logprobs: _Optional[bool] = ..., max_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Advance(_message.Message):
    __slots__ = ("epoch", "round_id", "position", "token_ids", "run")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    round_id: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    run: int
    def __init__(self, epoch: _Optional[int] = ..., round_id: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., run: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("round_id",)
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    round_id: int
    def __init__(self, round_id: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("session", "opened", "verified", "ended", "released", "failed")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    session: int
    opened: Opened
    verified: Verified
    ended: Ended
    released: Released
    failed: Failed
    def __init__(self, session: _Optional[int] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., verified: _Optional[_Union[Verified, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., released: _Optional[_Union[Released, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("epoch", "cached_tokens")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    cached_tokens: int
    def __init__(self, epoch: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Verified(_message.Message):
    __slots__ = ("round_id", "position", "token_ids", "drafted", "accepted", "finish_reason", "step_us", "batch_size", "batch_tokens", "logprobs")
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STEP_US_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    round_id: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    drafted: int
    accepted: int
    finish_reason: FinishReason
    step_us: int
    batch_size: int
    batch_tokens: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, round_id: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., step_us: _Optional[int] = ..., batch_size: _Optional[int] = ..., batch_tokens: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("token_id", "logprob", "top_token_ids", "top_logprobs")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("round_id",)
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    round_id: int
    def __init__(self, round_id: _Optional[int] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Failed(_message.Message):
    __slots__ = ("reason", "message", "round_id", "epoch", "retry_after_s", "param", "code")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    message: str
    round_id: int
    epoch: int
    retry_after_s: int
    param: str
    code: str
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., message: _Optional[str] = ..., round_id: _Optional[int] = ..., epoch: _Optional[int] = ..., retry_after_s: _Optional[int] = ..., param: _Optional[str] = ..., code: _Optional[str] = ...) -> None: ...
