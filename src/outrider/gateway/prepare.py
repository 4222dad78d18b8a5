"""From a decoded request to validated sessions: checks, chat template, budgets, noise."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider.errors import RequestError
from outrider.gateway.generation import Choice
from outrider.gateway.logprobs import LogprobsWriter
from outrider.gateway.neutral import refuse_unsupported
from outrider.gateway.parameters import sampling_of, stops_of, verification_of
from outrider.gateway.prompts import chat_prompt, encode, prediction_ids, split_prompt
from outrider.gateway.schemas import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    SpeculationOptions,
)
from outrider.gateway.service import Service
from outrider.pipeline import Session
from outrider.sampling import noise_key
from outrider.text import StopStrings
from outrider.types import TokenIds

__all__ = ["Job", "prepare_chat", "prepare_completion"]

_TRACED = 512
"""Rounds that an answer tells of, all choices together."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request, ready to run.

    Attributes:
        choices: in order of their index.
        prompts: token ids of each prompt, in the order of the request.
        chat: whether it came as a chat.
        stream, include_usage, continuous_usage, return_token_ids: how the client wants the answer.
        speculation: what it asked for.
        predicted: whether it came with a prediction.
        logprobs: writes log probabilities; None if they were not asked for.
    """

    choices: Sequence[Choice]
    prompts: Sequence[TokenIds]
    chat: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    speculation: SpeculationOptions
    predicted: bool = False
    logprobs: LogprobsWriter | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once, however many copies it gets."""
        return sum(len(prompt) for prompt in self.prompts)

    @property
    def cached_tokens(self) -> int:
        """How many of them the target had from earlier requests; of copies the first counts."""
        copies = len(self.choices) // len(self.prompts)
        return sum(choice.session.cached_tokens for choice in self.choices[::copies])

    def prompt_of(self, index: int) -> TokenIds:
        """The prompt of the choice at `index`."""
        return self.prompts[index * len(self.prompts) // len(self.choices)]


async def prepare_chat(service: Service, request: ChatRequest) -> Job:
    """Check and tokenize a chat. Raises `RequestError`."""
    _check(service, request)
    budget = request.max_tokens
    if request.max_completion_tokens is not None:
        if budget not in (None, request.max_completion_tokens):
            raise RequestError(
                f"max_tokens is {budget} and max_completion_tokens "
                f"{request.max_completion_tokens}; send one of them",
                param="max_completion_tokens",
            )
        budget = request.max_completion_tokens
    prompt = await chat_prompt(service, request.messages)
    try:
        return await _job(service, request, [prompt], budget)
    except RequestError as error:
        # The pipeline names fields as plain completions spell them.
        spelled = {"prompt": "messages"}
        if request.max_completion_tokens is not None:
            spelled["max_tokens"] = "max_completion_tokens"
        error.param = spelled.get(error.param or "", error.param)
        raise


async def prepare_completion(service: Service, request: CompletionRequest) -> Job:
    """Check and tokenize a plain completion. Raises `RequestError`."""
    _check(service, request)
    prompts = split_prompt(request.prompt)
    if len(prompts) > service.settings.limits.max_choices:
        raise RequestError(
            f"prompt has {len(prompts)} entries; at most {service.settings.limits.max_choices} "
            "are taken in one request (limits.max_choices)",
            param="prompt",
        )
    special = request.add_special_tokens
    size = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
    ids = [
        await encode(service, prompt, special, "prompt", size=size)
        if isinstance(prompt, str)
        else prompt
        for prompt in prompts
    ]
    return await _job(service, request, ids, request.max_tokens)


def _check(service: Service, request: GenerationRequest) -> None:
    service.check_model(request.model)
    refuse_unsupported(request)
    if request.stream_options is not None:
        refuse_unsupported(request.stream_options, "stream_options.")
        if not request.stream:
            raise RequestError(
                "stream_options is set but stream is not true; leave it out or set stream to true",
                param="stream_options",
            )
    limit = service.settings.limits.max_choices
    if request.n is not None and not 1 <= request.n <= limit:
        raise RequestError(
            f"n is {request.n}; it must lie in 1..{limit} (limits.max_choices)", param="n"
        )


async def _job(
    service: Service,
    request: ChatRequest | CompletionRequest,
    prompts: Sequence[TokenIds],
    budget: int | None,
) -> Job:
    chat = isinstance(request, ChatRequest)
    stops = stops_of(request)
    copies = request.n or 1
    speculation = request.speculation or SpeculationOptions()
    verification = verification_of(speculation)
    sampling = await sampling_of(service, request)
    prediction = await prediction_ids(service, request.prediction)
    choices: list[Choice] = []
    for prompt in prompts:
        sampling = replace(sampling, max_tokens=_budget(service, prompt, budget))
        key = noise_key(request.seed)
        for copy in range(copies):
            session: Session = service.pipeline.session(
                prompt,
                sampling,
                key=key,
                choice=copy,
                enabled=speculation.enabled,
                max_lookahead=speculation.max_lookahead,
                drafter=speculation.drafter,
                verification=verification,
                prediction=prediction,
                traced=_TRACED // (copies * len(prompts)) if speculation.trace else 0,
            )
            detokenizer = service.tokenizer.detokenizer(() if chat else prompt)
            choices.append(Choice(len(choices), session, detokenizer, StopStrings(stops)))
            await asyncio.sleep(0)  # many copies with large sets of ids take long to check
    _check_entries(service, choices)
    options = request.stream_options
    return Job(
        choices=choices,
        prompts=prompts,
        chat=chat,
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
        return_token_ids=bool(request.return_token_ids),
        speculation=speculation,
        predicted=request.prediction is not None,
        logprobs=None if sampling.logprobs is None else LogprobsWriter(service.tokenizer, chat),
    )


def _check_entries(service: Service, choices: Sequence[Choice]) -> None:
    samplings = [choice.session.opening.sampling for choice in choices]
    entries = sum(
        (1 + sampling.logprobs) * sampling.max_tokens
        for sampling in samplings
        if sampling.logprobs is not None
    )
    limit = service.settings.limits.max_logprob_entries
    if entries > limit:
        raise RequestError(
            f"logprobs would be up to {entries} entries over all choices; at most {limit} are sent "
            "(limits.max_logprob_entries): ask for fewer choices, tokens or likely tokens",
            param="logprobs",
        )


def _budget(service: Service, prompt: TokenIds, asked: int | None) -> int:
    if asked is not None:
        return asked
    left = service.pipeline.info.context_length - len(prompt)
    return max(min(service.settings.limits.default_max_tokens, left), 1)
