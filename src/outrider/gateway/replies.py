"""Response bodies: usage, speculation statistics, whole completions, lists of models."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from outrider.gateway.generation import Delta
from outrider.gateway.logprobs import ChatLogprobs, TextLogprobs
from outrider.gateway.prepare import Job
from outrider.gateway.service import Service
from outrider.types import Exactness, FinishReason, TokenIds, TokenLogprobs, VerificationMethod

__all__ = ["Header", "Output", "Speculation", "Usage", "header", "reply", "speculation"]


class PromptTokensDetails(Struct, frozen=True):
    """Tokens of the prompts that the target had from earlier requests, and need not compute."""

    cached_tokens: int


class CompletionTokensDetails(Struct, frozen=True):
    """Tokens that were drafted from the prediction of a request, and confirmed or not."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Struct, frozen=True):
    """Tokens of a request; the token that ended an output counts, nothing past it does."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class TracedRound(Struct, frozen=True):
    """A question to the target: `pipeline.Round`, and whose it is.

    Attributes:
        expected_plain, expected: tokens per second that the controller expected without drafts,
            and at the lookahead; None where it did not compare.
    """

    choice: int
    position: int
    lookahead: int
    drafted: int
    accepted: int
    tokens: int
    source: str | None
    why: str
    expected_plain: float | None
    expected: float | None


class Speculation(Struct, frozen=True):
    """What speculation did for a request, all choices together, and what holds of its output.

    Attributes:
        drafter: who drafted, or None for plain decoding.
        rounds: steps of the target.
        drafts: rounds that judged at least one drafted token.
        drafted_tokens, accepted_tokens: judged, and confirmed, even if the output's end cut them.
        acceptance_rate: accepted over drafted; None if nothing was drafted.
        mean_acceptance_length: output tokens per round; None without a round.
        draft_failures: drafts lost to a failing or late drafter.
        verification: how drafts were judged.
        exact: what holds between the output and plain decoding: identical, distribution or no.
        reason: the condition under which it holds, or why nothing was drafted.
        trace: the first rounds of every choice, if the request asked for them.
    """

    drafter: str | None
    rounds: int
    drafts: int
    drafted_tokens: int
    accepted_tokens: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    draft_failures: int
    verification: VerificationMethod
    exact: Exactness
    reason: str | None
    trace: Sequence[TracedRound] | UnsetType = UNSET


class _Message(Struct, frozen=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class _Choice(Struct, frozen=True):
    index: int
    finish_reason: FinishReason
    message: _Message | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: ChatLogprobs | TextLogprobs | None = None
    token_ids: TokenIds | UnsetType = UNSET
    prompt_token_ids: TokenIds | UnsetType = UNSET


class Header(Struct, frozen=True):
    """What every chunk of a response begins with."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class _Reply(Struct, frozen=True):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: Sequence[_Choice]
    usage: Usage
    speculation: Speculation
    prompt_token_ids: TokenIds | UnsetType = UNSET


class Output:
    """What the choices of a request have said so far.

    Attributes:
        completion_tokens: of all choices.
        logprobs: how many log probabilities are kept for a whole response.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._texts: list[list[str]] = [[] for _ in job.choices]
        self._token_ids: list[list[int]] = [[] for _ in job.choices]
        self._reasons: list[FinishReason] = [FinishReason.STOP for _ in job.choices]
        self._logprobs: list[list[TokenLogprobs]] = [[] for _ in job.choices]
        self._offsets: list[list[int]] = [[] for _ in job.choices]
        self.completion_tokens = 0
        self.logprobs = 0

    def add(self, delta: Delta) -> None:
        """Enter what a choice adds."""
        self.completion_tokens += len(delta.token_ids)
        self._texts[delta.index].append(delta.text)
        self._token_ids[delta.index].extend(delta.token_ids)
        if delta.finish_reason is not None:
            self._reasons[delta.index] = delta.finish_reason
        if delta.logprobs and not self._job.stream:
            self._logprobs[delta.index].extend(delta.logprobs)
            self._offsets[delta.index].extend(delta.offsets)
            self.logprobs += sum(1 + len(entry.top) for entry in delta.logprobs)

    @property
    def usage(self) -> Usage:
        job = self._job
        return Usage(
            prompt_tokens=job.prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=job.prompt_tokens + self.completion_tokens,
            prompt_tokens_details=PromptTokensDetails(job.cached_tokens),
            completion_tokens_details=self._predicted() if job.predicted else UNSET,
        )

    def _predicted(self) -> CompletionTokensDetails:
        stats = [choice.session.stats for choice in self._job.choices]
        accepted = sum(each.predicted_accepted for each in stats)
        rejected = sum(each.predicted for each in stats) - accepted
        # What a stop string cut off was confirmed, but is no part of the output.
        return CompletionTokensDetails(min(accepted, self.completion_tokens), rejected)

    def choices(self) -> list[_Choice]:
        """The choices of a whole response."""
        job = self._job
        found = []
        for index, pieces in enumerate(self._texts):
            text = "".join(pieces)
            ids: TokenIds | UnsetType = UNSET
            prompt_ids: TokenIds | UnsetType = UNSET
            if job.return_token_ids:
                ids = tuple(self._token_ids[index])
                prompt_ids = UNSET if job.chat else job.prompt_of(index)
            found.append(
                _Choice(
                    index=index,
                    finish_reason=self._reasons[index],
                    message=_Message(text) if job.chat else UNSET,
                    text=UNSET if job.chat else text,
                    logprobs=None
                    if job.logprobs is None
                    else job.logprobs.write(self._logprobs[index], self._offsets[index]),
                    token_ids=ids,
                    prompt_token_ids=prompt_ids,
                )
            )
        return found


def header(service: Service, job: Job) -> Header:
    """A new response's identity."""
    prefix, kind = ("chatcmpl", "chat.completion") if job.chat else ("cmpl", "text_completion")
    if job.chat and job.stream:
        kind = "chat.completion.chunk"
    return Header(
        id=f"{prefix}-{uuid.uuid4().hex}",
        object=kind,
        created=int(time.time()),
        model=service.model_id,
        system_fingerprint=service.fingerprint,
    )


def reply(service: Service, job: Job, output: Output) -> _Reply:
    """The body of a response that is sent whole."""
    start = header(service, job)
    return _Reply(
        id=start.id,
        object=start.object,
        created=start.created,
        model=start.model,
        system_fingerprint=start.system_fingerprint,
        choices=output.choices(),
        usage=output.usage,
        speculation=speculation(job, output),
        prompt_token_ids=job.prompts[0] if job.chat and job.return_token_ids else UNSET,
    )


def speculation(job: Job, output: Output) -> Speculation:
    """The statistics of a request; of its choices the weakest statement counts."""
    stats = [choice.session.stats for choice in job.choices]
    rounds = sum(each.rounds for each in stats)
    drafted = sum(each.drafted for each in stats)
    accepted = sum(each.accepted for each in stats)
    verdicts = [choice.session.verification() for choice in job.choices]
    methods = [method for method, _, _ in verdicts if method is not VerificationMethod.NONE]
    reasons = [reason for _, _, reason in verdicts if reason is not None]
    drafter = stats[0].drafter
    if drafter is None:
        asked = job.speculation
        off = not asked.enabled or asked.max_lookahead == 0
        reasons.append(
            "the request turned speculation off" if off else "this server runs without drafters"
        )
    return Speculation(
        drafter=drafter,
        rounds=rounds,
        drafts=sum(each.drafts for each in stats),
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        acceptance_rate=round(accepted / drafted, 4) if drafted else None,
        mean_acceptance_length=round(output.completion_tokens / rounds, 4) if rounds else None,
        draft_failures=sum(each.failures for each in stats),
        verification=methods[0] if methods else VerificationMethod.NONE,
        exact=max((exact for _, exact, _ in verdicts), key=list(Exactness).index),
        reason=reasons[0] if reasons else None,
        trace=_trace(job) if job.speculation.trace else UNSET,
    )


def _trace(job: Job) -> list[TracedRound]:
    return [
        TracedRound(
            choice=choice.index,
            position=each.position,
            lookahead=each.lookahead,
            drafted=each.drafted,
            accepted=each.accepted,
            tokens=each.tokens,
            source=each.source or None,
            why=each.why,
            expected_plain=_rounded(each.plain_rate),
            expected=_rounded(each.chosen_rate),
        )
        for choice in job.choices
        if choice.session.log is not None
        for each in choice.session.log.rounds
    ]


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 2)
