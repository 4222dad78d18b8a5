"""The nouns that every room shares. Imports nothing of the project.

Token ids are plain `int`s in tuples at the seams between rooms and numpy or torch arrays inside
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = [
    "DRAFT_TOTAL",
    "NO_DRAFT",
    "PROTOCOL_VERSION",
    "Capabilities",
    "Draft",
    "DraftRow",
    "DrafterInfo",
    "Exactness",
    "FinishReason",
    "LogprobsMode",
    "Origin",
    "SampledDraft",
    "SamplingParams",
    "TargetInfo",
    "TokenIds",
    "TokenLogprobs",
    "Verification",
    "VerificationMethod",
]

PROTOCOL_VERSION: Final = 1
"""Version of the contract between pipeline and target."""

TokenIds = tuple[int, ...]


class FinishReason(StrEnum):
    """Why a request ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


class Origin(StrEnum):
    """Where an output token came from.

    `accepted`: drafted and confirmed by the target. `recovered`: the target's own token where it
    first disagreed with the draft. `bonus`: the target's extra token after a wholly accepted
    draft. `plain`: decoded without a draft.
    """

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    PLAIN = "plain"


class Exactness(StrEnum):
    """What holds between a response and plain decoding by the target alone."""

    IDENTICAL = "identical"  # equal token for token
    DISTRIBUTION = "distribution"  # equally distributed
    NO = "no"


class VerificationMethod(StrEnum):
    """How drafted tokens were judged."""

    NONE = "none"  # nothing was drafted
    GREEDY = "greedy"  # the target's argmax equals the draft
    MATCHING = (
        "matching"  # the target's own sample, drawn with the request's noise, equals the draft
    )
    TOKEN = "token"  # noqa: S105 # no password: the ratio of target to draft probability, token by token
    BLOCK = "block"  # the same ratios, judged jointly over the whole draft

    @property
    def ratio(self) -> bool:
        """Whether drafts are judged by the distribution that they were drawn from."""
        return self in (VerificationMethod.TOKEN, VerificationMethod.BLOCK)


class LogprobsMode(StrEnum):
    """Of which distribution log probabilities are told."""

    RAW = "raw"  # the model's own, over the whole vocabulary
    PROCESSED = "processed"  # the one that is sampled: penalties, temperature, top-p, ... applied


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target picks each token. Validated by `sampling.validate`.

    Attributes:
        temperature: 0 is greedy: the argmax, lowest id on ties.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens that holds this much probability.
        min_p: drop tokens less likely than this fraction of the most likely one.
        repetition_penalty: above 1, logits of tokens of prompt and output are divided by it where
            positive and multiplied where negative.
        presence_penalty: taken once from the logits of tokens that the output holds.
        frequency_penalty: taken as often as the output holds the token.
        logit_bias: added to the logits of these ids.
        bad_words: sequences of ids that the output never holds.
        allowed_token_ids: the only ids that may be sampled; None allows all.
        min_tokens: output length below which no token that ends the output is sampled.
        logprobs: tell the log probability of every output token, and of so many of the likeliest
            tokens in its place; None tells nothing.
        logprobs_mode: of which distribution.
        seed: fixes the noise key, and with it the output; None draws a random one.
        max_tokens: output budget in tokens, at least 1.
        stop_token_ids: token ids that end the output, beside the model's own.
        ignore_eos: run on past the model's end-of-sequence tokens.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[TokenIds, ...] = ()
    allowed_token_ids: frozenset[int] | None = None
    min_tokens: int = 0
    logprobs: int | None = None
    logprobs_mode: LogprobsMode = LogprobsMode.RAW
    seed: int | None = None
    max_tokens: int = 256
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def end_token_ids(self, eos_token_ids: frozenset[int]) -> frozenset[int]:
        """Ids that end the output of a model with these end-of-sequence ids."""
        return self.stop_token_ids | (frozenset() if self.ignore_eos else eos_token_ids)


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that a drafter guesses will come next, for the target to judge.

    It carries no distribution: it is judged by matching, which is exact for every draft, however
    it came about, so it may also be dropped at any time.

    Attributes:
        token_ids: none is a fine guess.
        source: name of who guessed.
        match: tokens in front of the draft that the guess rests on, where it is copied from
            earlier text; 0 if that means nothing.
    """

    token_ids: TokenIds = ()
    source: str = ""
    match: int = 0

    def __len__(self) -> int:
        return len(self.token_ids)

    def clamp(self, max_tokens: int) -> Draft:
        """The first `max_tokens` tokens of this draft."""
        if len(self.token_ids) <= max_tokens:
            return self
        return replace(self, token_ids=self.token_ids[:max_tokens])


NO_DRAFT: Final = Draft()

DRAFT_TOTAL: Final = 65535
"""What the counts of a `DraftRow` sum to."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftRow:
    """The distribution that a drafted token was drawn from, exactly.

    Attributes:
        token_ids: int64, shape [s], ascending: the tokens that could be drawn.
        counts: uint16, shape [s], each at least 1, summing to `DRAFT_TOTAL`.
    """

    token_ids: npt.NDArray[np.int64]
    counts: npt.NDArray[np.uint16]

    def probs(self) -> npt.NDArray[np.float64]:
        """Probabilities of `token_ids`, shape [s]."""
        return self.counts / DRAFT_TOTAL


@dataclass(frozen=True, slots=True, eq=False)
class SampledDraft:
    """Tokens drawn from declared distributions, for ratio verification.

    Once drawn it has to be judged, whole: dropping or cutting it depending on what was drawn biases
    the output. So it is no `Draft`, and nothing here shortens it.

    Attributes:
        token_ids: at least one.
        rows: one per token, each chosen before its token was drawn.
        source: name of the drafter.
    """

    token_ids: TokenIds
    rows: tuple[DraftRow, ...]
    source: str

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one output position, given what precedes it.

    Attributes:
        token_id: the output token.
        logprob: its own.
        top: the likeliest ids with theirs, descending, lower ids first among equals.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """What the target answers to a draft, and to each further step it takes alone.

    Attributes:
        round_id: the round whose draft this judges.
        position: output tokens that the session held before this answer.
        token_ids: the accepted draft tokens and one more from the target; cut at the end of the
            output.
        drafted: draft tokens judged in this step.
        accepted: how many of them the target confirmed (may exceed what was emitted, if the end
            cut it).
        finish_reason: set when the output ended with the last of `token_ids`.
        step_s: seconds that the target spent on the step, queueing apart.
        batch_size: sessions that shared the step.
        batch_tokens: tokens computed in the step, of all sessions; as many as `batch_size` in a
            step of plain decoding alone.
        logprobs: one per token of `token_ids`, if the session asked for them.
    """

    round_id: int
    position: int
    token_ids: TokenIds
    drafted: int = 0
    accepted: int = 0
    finish_reason: FinishReason | None = None
    step_s: float = 0.0
    batch_size: int = 1
    batch_tokens: int = 1
    logprobs: tuple[TokenLogprobs, ...] | None = None

    def origins(self) -> tuple[Origin, ...]:
        """One origin per token of `token_ids`."""
        if self.drafted == 0:
            return (Origin.PLAIN,) * len(self.token_ids)
        last = Origin.BONUS if self.accepted == self.drafted else Origin.RECOVERED
        return tuple(
            Origin.ACCEPTED if index < self.accepted else last
            for index in range(len(self.token_ids))
        )


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a target can prove about its output.

    Attributes:
        sampling: exact sampling by matching; if False, only temperature 0 is exact.
        seeds: the same seed gives the same output.
        batch_invariant: a row's result does not depend, to the last bit, on what else is in the
            batch or on how many tokens a step takes. Without it greedy and seeded outputs may
            differ from plain decoding where two logits lie within rounding of each other.
        ratios: it takes a `SampledDraft`. One that is reached over a network does not: what may be
            lost on the way may not be judged by ratios.
        max_draft_tokens: the longest draft that one round may carry.
    """

    sampling: bool = True
    seeds: bool = True
    batch_invariant: bool = False
    ratios: bool = True
    max_draft_tokens: int = 16


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What a gateway needs to know of a target; it holds no model files itself.

    Attributes:
        model_id: the name under which the model is served.
        model_hash: identifies the weights; equal hashes mean equal outputs.
        vocab_size: size of a row of logits; token ids lie in [0, vocab_size).
        vocab_fingerprint: sha256 over the token strings in order of id.
        tokenizer_json: a Hugging Face `tokenizer.json`; None for a model whose text is its ids.
        chat_template: jinja source, or None if the model has no chat form.
        special_tokens: names that the chat template uses (`bos_token`, ...) to token strings.
        bos_token_id: put before a text prompt, if the model wants one.
        eos_token_ids: ids that end an output.
        context_length: prompt and output together, in tokens.
        dtype: what the weights are held in, such as int8; None if that means nothing.
        drafters: those that run beside the target, wherever that is: see `NearDraft`.
    """

    model_id: str
    model_hash: str
    vocab_size: int
    vocab_fingerprint: str
    eos_token_ids: frozenset[int]
    context_length: int
    dtype: str | None = None
    tokenizer_json: str | None = field(default=None, repr=False)
    chat_template: str | None = field(default=None, repr=False)
    special_tokens: dict[str, str] = field(default_factory=dict)
    bos_token_id: int | None = None
    drafters: tuple[str, ...] = ()
    capabilities: Capabilities = Capabilities()
    protocol_version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """What a drafter says of itself.

    Attributes:
        name: how requests name it.
        deterministic: the same context always gives the same draft.
        declares: it draws in this process and can declare what it drew from: see `SampledDraft`.
        ahead: it can draft behind a guess, while the target judges what lies before it.
        context_length: longest context it can draft for; None if unlimited.
        model_hash: identifies its weights, or None if it has none.
        vocab_fingerprint: of its token strings, as in `TargetInfo`; None if it only repeats ids of
            the target.
    """

    name: str
    deterministic: bool = True
    declares: bool = False
    ahead: bool = False
    context_length: int | None = None
    model_hash: str | None = None
    vocab_fingerprint: str | None = None
