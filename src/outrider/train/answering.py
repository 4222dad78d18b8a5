"""Conversations held with the target on this process's engine, with the rows behind each token."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

import numpy as np
import torch

from outrider.engine import Feed, Job, Lane, Opening, StepInfo
from outrider.errors import (
    ContextLengthExceeded,
    OutriderError,
    Overloaded,
    RequestError,
    TargetFailed,
    TrainingError,
)
from outrider.sampling import History, Sampler, noise_key, validate
from outrider.sampling.device import sampler_on
from outrider.text import ChatTemplate, create_tokenizer
from outrider.train.conversation import Conversation
from outrider.train.prompts import Prompt
from outrider.train.recording import Recorder
from outrider.train.records import Example, Source
from outrider.types import FinishReason, SamplingParams, TargetInfo

__all__ = ["Answerer", "Skipped", "sampling_params"]

_ROOM_WAIT_S: Final = 0.05


class Skipped(StrEnum):
    """Why there is no answer to a prompt."""

    TOO_LONG = "longer than the context"
    REFUSED = "refused by the chat template or the tokenizer"


def sampling_params(
    source: Source, prompt: Prompt, temperature: float, turn: int
) -> SamplingParams:
    """How the answer to one turn is drawn: the seed hangs on what is asked, not on when."""
    sampling = source.sampling
    place = f"{sampling.seed} {prompt.id} {temperature!r} {turn}"
    seed = int.from_bytes(hashlib.sha256(place.encode()).digest()[:8]) >> 1
    return SamplingParams(
        temperature=temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=seed,
        max_tokens=sampling.max_tokens,
    )


class Answerer:
    """Lets the target answer prompts, many at a time.

    Args:
        lane: the target on its engine.
        info: what the target says of itself.
        source: how answers are drawn, and what is kept of them.
        on_token: called on the engine's thread for every token that is made.
    """

    def __init__(
        self,
        lane: Lane,
        info: TargetInfo,
        source: Source,
        on_token: Callable[[], None] = lambda: None,
    ) -> None:
        self._lane = lane
        self._info = info
        self._source = source
        self._on_token = on_token
        self._tokenizer = create_tokenizer(info)
        self._template = ChatTemplate(info.chat_template, info.special_tokens)
        self._sampler = sampler_on(lane.decoder.device)

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse at once what no prompt would survive. Raises TrainingError, RequestError."""
        if not self._template.available and any(prompt.chat for prompt in prompts):
            raise TrainingError(
                f"{self._info.model_id} has no chat template, so it cannot answer chats; give it "
                'texts to continue, {"text": "..."} a line'
            )
        for temperature in self._source.sampling.temperatures:
            params = sampling_params(self._source, prompts[0], temperature, 0)
            validate(params, vocab_size=self._info.vocab_size)

    async def answer(self, prompt: Prompt, temperature: float) -> Example | Skipped:
        """One conversation, all of its turns answered.

        A turn that no longer fits the context, or in front of which the chat template would write
        the conversation otherwise than it went, ends the conversation in front of it.

        Raises:
            TargetFailed: the engine failed.
        """
        conversation = Conversation(prompt, self._tokenizer, self._template)
        recorder = Recorder(self._source.k, self._source.temperatures)
        for turn in range(max(len(prompt.turns), 1)):
            try:
                added = conversation.ask()
                if added is None:
                    break
                prompt_ids = (*conversation.token_ids, *added)
                params = sampling_params(self._source, prompt, temperature, turn)
                finish, tokens = await self._generate(prompt_ids, params, recorder)
            except ContextLengthExceeded:
                if turn == 0:
                    return Skipped.TOO_LONG
                break
            except RequestError:
                if turn == 0:
                    return Skipped.REFUSED
                break
            conversation.add(added, tokens[len(prompt_ids) :], finish)
        return Example(
            id=f"{prompt.id}-{temperature:g}",
            category=prompt.category,
            token_ids=np.asarray(conversation.token_ids, dtype=np.int32),
            generated=np.asarray(conversation.generated, dtype=np.bool_),
            support_ids=recorder.support_ids(),
            support_logits=recorder.support_logits(),
            logsumexps=recorder.logsumexps(),
            temperature=temperature,
            held_out=prompt.held_out(self._source.holdout),
            finish_reasons=tuple(conversation.finish_reasons),
        )

    async def _generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, recorder: Recorder
    ) -> tuple[FinishReason, list[int]]:
        """Why the answer ended, and prompt and answer."""
        room = self._info.context_length - len(prompt_ids)
        if room < 1:
            raise ContextLengthExceeded(f"no room behind {len(prompt_ids)} tokens")
        budget = min(params.max_tokens, room)
        history = History(prompt_ids)
        ends = params.end_token_ids(self._info.eos_token_ids)
        sampler = self._sampler(params, noise_key(params.seed), 0, end_token_ids=ends)

        def record(row: torch.Tensor) -> None:
            recorder.record(row)
            self._on_token()

        opening = await self._open(prompt_ids, len(prompt_ids) + budget)
        try:
            job = _Answer(self._lane, opening.slot, history, sampler, ends, budget, record)
            self._lane.submit(job)
            try:
                return await job.ended, history.tokens
            except OutriderError:
                raise
            except Exception as error:
                raise TargetFailed(f"the engine failed: {error}") from error
            finally:
                job.cancel()
        finally:
            await self._lane.close(opening.slot, history.tokens)

    async def _open(self, prompt_ids: Sequence[int], most: int) -> Opening:
        """A slot, as soon as there is room beside the other conversations."""
        while True:
            try:
                return await self._lane.open(prompt_ids, most, "")
            except Overloaded:
                await asyncio.sleep(_ROOM_WAIT_S)


class _Answer(Job):
    """One answer on the engine's thread, token by token.

    Args:
        history: the prompt; gets the answer.
        ends: ids that end it.
        budget: its longest length in tokens.
        record: is given the row of every token, right behind the pass.

    Attributes:
        ended: why it ended, or the engine's error.
    """

    def __init__(
        self,
        lane: Lane,
        slot: int,
        history: History,
        sampler: Sampler,
        ends: frozenset[int],
        budget: int,
        record: Callable[[torch.Tensor], None],
    ) -> None:
        super().__init__(slot)
        self.ended: asyncio.Future[FinishReason] = asyncio.get_running_loop().create_future()
        self._cache = lane.cache
        self._history = history
        self._sampler = sampler
        self._ends = ends
        self._budget = budget
        self._record = record

    def feed(self) -> Feed | None:
        history = self._history
        if history.output_length and history.tokens[-1] in self._ends:
            self.tell(self._settle, FinishReason.STOP)
            return None
        if history.output_length >= self._budget:
            self.tell(self._settle, FinishReason.LENGTH)
            return None
        # The last token is always fed, since its logits are wanted.
        known = min(self._cache.length(self.slot), len(history) - 1)
        self._cache.truncate(self.slot, known)
        return Feed(history.tokens[known:], 1)

    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        token = self._sampler.sample(logits[0], self._history)
        self._record(logits[0])
        self._history.extend((token,))

    def fail(self, error: Exception) -> None:
        self.tell(self._settle, error)

    def _settle(self, outcome: FinishReason | Exception) -> None:
        if self.ended.done():
            return
        if isinstance(outcome, Exception):
            self.ended.set_exception(outcome)
        else:
            self.ended.set_result(outcome)
