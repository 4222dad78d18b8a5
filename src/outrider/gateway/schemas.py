"""Request bodies, and how strictly they are read.

Every field of OpenAI's API is known here. It is either honoured, or without effect on the output
and ignored, or not supported by this version: then only its neutral value (`null`, `false`, an
empty list, ...) is accepted, see `neutral`. An unknown field is refused, so nothing is silently
half-honoured.

Ignored, whatever they hold: `user`, `metadata`, `service_tier`, `parallel_tool_calls`,
`prompt_cache_key`, `prompt_cache_retention`, `safety_identifier`; of messages `refusal` and
`annotations`, which come with an answer that is sent back.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType

__all__ = [
    "ROLES",
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "GenerationRequest",
    "Message",
    "Prediction",
    "SpeculationOptions",
    "StreamOptions",
    "TokenizeRequest",
]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")


class StreamOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """What a stream tells besides the text.

    Attributes:
        include_usage: a last chunk without choices carries the usage of the whole request.
        continuous_usage_stats: every chunk carries the usage so far.
        include_obfuscation: unsupported unless false.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Any = None


class SpeculationOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """Per-request policy, an extension of OpenAI's API.

    Attributes:
        enabled: False decodes plainly.
        max_lookahead: a tighter bound on drafted tokens per round; 0 decodes plainly.
        drafter: which of the server's drafters to use; None takes the default.
        verification: how sampled drafts are judged: matching, token or block; None leaves the
            choice to the server.
        trace: the answer tells, round by round, what was drafted and why.
    """

    enabled: bool = True
    max_lookahead: int | None = None
    drafter: str | None = None
    verification: str | None = None
    trace: bool = False


class Prediction(Struct, forbid_unknown_fields=True, frozen=True):
    """What the caller says the output will largely be; OpenAI's predicted outputs.

    It makes the output no different, only faster where it agrees. Unlike there it goes with every
    other parameter. Content is a text, or a list of `{"type": "text", "text": ...}`, which together
    are one text.
    """

    type: str
    content: str | list[dict[str, Any]]


class Message(Struct, forbid_unknown_fields=True, frozen=True):
    """One message of a chat. Content is a text, or a list of `{"type": "text", "text": ...}`."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None
    refusal: Any = None
    annotations: Any = None


class GenerationRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What chat and plain completions have in common; see the module for unsupported fields.

    Fields are named and meant as in OpenAI's API or, where it lacks them, as in vLLM's.

    Attributes:
        logit_bias: by token id, written in decimal.
        bad_words: texts whose token sequences the output never holds.
        logprobs_mode: raw or processed; see `LogprobsMode`.
    """

    model: str
    max_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int | None = None
    logprobs_mode: str | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    speculation: SpeculationOptions | None = None
    prediction: Prediction | None = None

    user: str | None = None
    metadata: Any = None
    service_tier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None

    length_penalty: Any = None
    best_of: Any = None
    use_beam_search: Any = None
    response_format: Any = None
    skip_special_tokens: Any = None
    spaces_between_special_tokens: Any = None
    include_stop_str_in_output: Any = None


class ChatRequest(GenerationRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: Any = None

    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: Any = None
    moderation: Any = None
    reasoning_effort: Any = None
    store: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None


class CompletionRequest(GenerationRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """`POST /v1/completions`. The prompt is a text, texts, token ids, or lists of token ids."""

    prompt: str | list[str | int | list[int]]
    add_special_tokens: bool = True
    logprobs: int | None = None

    echo: Any = None
    suffix: Any = None


class TokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """`POST /tokenize`: a text, or the messages of a chat."""

    model: str | None = None
    prompt: str | UnsetType = UNSET
    messages: list[Message] | UnsetType = UNSET
    add_special_tokens: bool = True


class DetokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[int]
