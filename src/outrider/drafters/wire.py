"""What travels between a draft server and whoever asks it: JSON, or msgpack of the same form.

`POST /v1/propose` in its plain form, which always works and leaves nothing behind:

    {"tokens": [...], "num_tokens": 4, "temperature": 0}  ->  {"tokens": [...], "logprobs": [...]}

With a `session_id` the server keeps what it was sent: `base` says how many tokens it holds already,
and only those behind them travel. If it does not hold as many, it answers 409 with `held`, and the
caller sends the rest.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from outrider.types import SamplingParams

__all__ = [
    "JSON",
    "MAX_DRAFT_TOKENS",
    "MSGPACK",
    "Description",
    "Lost",
    "ProposeRequest",
    "ProposeResponse",
    "ReleaseRequest",
    "Sampling",
]

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"

MAX_DRAFT_TOKENS: Final = 64
"""Most tokens that one request may ask for."""


class Sampling(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """How the target samples; fields and defaults are those of `SamplingParams`.

    What only concerns the target is left out.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    min_tokens: int = 0
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    @classmethod
    def of(cls, params: SamplingParams) -> Sampling:
        """What of `params` matters to a draft."""
        allowed = params.allowed_token_ids
        return cls(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            logit_bias=dict(params.logit_bias),
            bad_words=params.bad_words,
            allowed_token_ids=None if allowed is None else tuple(sorted(allowed)),
            min_tokens=params.min_tokens,
            max_tokens=params.max_tokens,
            stop_token_ids=tuple(sorted(params.stop_token_ids)),
            ignore_eos=params.ignore_eos,
        )

    def params(self) -> SamplingParams:
        """The same as parameters, not yet validated."""
        allowed = self.allowed_token_ids
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            bad_words=self.bad_words,
            allowed_token_ids=None if allowed is None else frozenset(allowed),
            min_tokens=self.min_tokens,
            max_tokens=self.max_tokens,
            stop_token_ids=frozenset(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
        )


class ProposeRequest(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Asks for a draft.

    Attributes:
        tokens: prompt and committed output; in a session, those from `base` on.
        num_tokens: most tokens to draft.
        temperature: of the plain form; 0, the default, is greedy.
        session_id: under which the server keeps the tokens; empty keeps nothing.
        base: tokens of the session that the server holds already. It compares what it is sent
            with what it holds behind them, and keeps what they have in common.
        guess: tokens assumed to follow, which are drafted behind and then forgotten.
        return_distribution: draw at random, and tell from which distributions.
        prompt_length: how many tokens are the prompt; None counts all. This and the fields below
            are taken from the request that begins a session, with `base` 0.
        noise_key: the session's noise, with which the target samples too, so that both often agree;
            None draws at random.
        choice: index of this copy among those of one request.
        tenant: whose session it is; nothing is shared between tenants.
        sampling: how the target samples, in place of `temperature`.
    """

    tokens: list[int]
    num_tokens: int
    temperature: float | None = None
    session_id: str = ""
    base: int = 0
    guess: list[int] = []
    return_distribution: bool = False
    prompt_length: int | None = None
    noise_key: int | None = None
    choice: int = 0
    tenant: str = ""
    sampling: Sampling | None = None


class ProposeResponse(Struct, omit_defaults=True):
    """A draft.

    Attributes:
        tokens: at most as many as were asked for.
        logprobs: natural logarithms of the probabilities that they were drawn with; None if they
            were sampled with the session's noise.
        support: ids of the tokens that could be drawn, ascending, for each of `tokens`; None
            unless asked for.
        counts: their probabilities in parts of 65535, each at least 1, for each of `tokens`.
    """

    tokens: list[int]
    logprobs: list[float] | None = None
    support: list[list[int]] | None = None
    counts: list[list[int]] | None = None


class Lost(Struct):
    """Goes with status 409: the server does not hold `base` tokens of the session.

    Attributes:
        held: how many it holds; 0 for a session that it does not know.
        model_hash: of the model that it runs now; it may have been started anew.
    """

    held: int
    model_hash: str = ""


class ReleaseRequest(Struct, forbid_unknown_fields=True):
    """`POST /v1/release`: forget these sessions. Unknown ones are ignored."""

    session_ids: list[str]


class Description(Struct, kw_only=True):
    """What `GET /v1/describe` answers.

    Attributes:
        name: of the model.
        model_hash: identifies its weights.
        vocab_size: ids lie in [0, vocab_size).
        vocab_fingerprint: of its token strings, as in `TargetInfo`.
        context_length: longest context, in tokens.
        deterministic: the same context always gives the same draft.
        max_tokens: most tokens that one request may ask for.
    """

    name: str
    model_hash: str
    vocab_size: int
    vocab_fingerprint: str
    context_length: int
    deterministic: bool = False
    max_tokens: int = MAX_DRAFT_TOKENS
