"""From sessions to text: runs the choices of one request and hands their deltas on as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from outrider.errors import TargetFailed
from outrider.gateway.admission import Slot
from outrider.pipeline import Pipeline, Session, Step
from outrider.text import Detokenizer, StopStrings
from outrider.types import FinishReason, TokenIds, TokenLogprobs

__all__ = ["Choice", "Delta", "Generation", "deltas"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One output to make.

    Attributes:
        index: its place in the response.
        session: not yet open.
        detokenizer: fresh.
        stops: fresh.
    """

    index: int
    session: Session
    detokenizer: Detokenizer
    stops: StopStrings


@dataclass(frozen=True, slots=True)
class Delta:
    """What a choice adds to its output.

    Attributes:
        index: of the choice.
        text: may be empty, within a character or a possible stop string.
        token_ids: those that became certain, nothing past the end.
        finish_reason: set with the last delta of the choice.
        logprobs: one per token of `token_ids` but a last one without text, which only ended the
            output; empty if they were not asked for.
        offsets: one per entry of `logprobs`; characters of the choice's text in front of the
            token, be they shown yet or held back.
    """

    index: int
    text: str
    token_ids: TokenIds
    finish_reason: FinishReason | None
    logprobs: Sequence[TokenLogprobs] = ()
    offsets: Sequence[int] = ()


async def deltas(pipeline: Pipeline, choice: Choice) -> AsyncGenerator[Delta]:
    """Decode one choice to its end, be it the target's or a stop string.

    The session is released before the last delta is handed out, so whoever has seen the end of a
    response may count on its place being free.

    Raises:
        TargetFailed: the target broke its contract.
    """
    last: Delta | None = None
    reading = _Reading(choice)
    async with aclosing(pipeline.run(choice.session)) as steps:
        async for step in steps:
            delta = reading.delta(step)
            if delta.finish_reason is not None:
                last = delta
                break
            yield delta
    if last is None:
        raise TargetFailed("the target ended the output without a reason; send the request again")
    yield last


class _Reading:
    """What the caller sees of a choice: stop beats length, and the ending token has no text."""

    def __init__(self, choice: Choice) -> None:
        sampling = choice.session.opening.sampling
        self._choice = choice
        self._min_tokens = sampling.min_tokens
        self._wants_logprobs = sampling.logprobs is not None
        self._tokens = 0
        self._chars = 0

    def delta(self, step: Step) -> Delta:
        """What the next step adds."""
        choice = self._choice
        text = ""
        offsets: list[int] = []
        visible = len(step.token_ids) - (step.finish_reason is FinishReason.STOP)
        for token_id in step.token_ids[:visible]:
            self._tokens += 1
            offsets.append(self._chars)
            text += self._shown(choice.detokenizer.push(token_id))
            if choice.stops.matched is not None:
                return self._delta(step, text, offsets, len(offsets), FinishReason.STOP)
        reason = step.finish_reason
        if reason is not None:
            text += self._shown(choice.detokenizer.flush())
            if choice.stops.matched is None:
                text += choice.stops.flush()
            else:
                reason = FinishReason.STOP
        return self._delta(step, text, offsets, len(step.token_ids), reason)

    def _shown(self, text: str) -> str:
        """What of new text may be shown; stop strings count from `min_tokens` tokens on."""
        self._chars += len(text)
        if self._tokens <= self._min_tokens:
            return text
        return self._choice.stops.push(text)

    def _delta(
        self,
        step: Step,
        text: str,
        offsets: Sequence[int],
        count: int,
        reason: FinishReason | None,
    ) -> Delta:
        index, token_ids = self._choice.index, step.token_ids[:count]
        if not self._wants_logprobs:
            return Delta(index, text, token_ids, reason)
        if step.logprobs is None or len(step.logprobs) != len(step.token_ids):
            raise TargetFailed(
                f"the target told {len(step.logprobs or ())} log probabilities of "
                f"{len(step.token_ids)} tokens; send the request without logprobs"
            )
        return Delta(index, text, token_ids, reason, step.logprobs[: len(offsets)], offsets)


class Generation:
    """Runs the choices of one request at a time with all others; iterate over it for their deltas.

    Deltas are kept until they are fetched, at most as many as the token budget allows, so a client
    that reads slowly keeps no slot. Leaving the context stops all work and gives every slot back.

    Args:
        pipeline: decodes.
        choices: what to make.
        slots: one per choice.
    """

    def __init__(
        self, pipeline: Pipeline, choices: Sequence[Choice], slots: Sequence[Slot]
    ) -> None:
        self._pipeline = pipeline
        self._choices = choices
        self._slots = slots
        self._unfinished = len(choices)
        self._events: asyncio.Queue[Delta | Exception] = asyncio.Queue()
        self._error: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        pairs = zip(self._choices, self._slots, strict=True)
        self._tasks = [asyncio.create_task(self._run(choice, slot)) for choice, slot in pairs]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        # A task that was cancelled before it first ran never reached its own release.
        for slot in self._slots:
            slot.release()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        """The next delta of any choice; raises what a choice raised, or what `abort` was given."""
        if self._error is not None:
            raise self._error
        if self._unfinished == 0:
            raise StopAsyncIteration
        event = await self._events.get()
        if isinstance(event, Exception):
            self._error = event
            raise event
        return self._seen(event)

    def ready(self) -> list[Delta]:
        """Further deltas that are there already."""
        found: list[Delta] = []
        while self._error is None and not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, Exception):
                self._error = event
            else:
                found.append(self._seen(event))
        return found

    def abort(self, error: Exception) -> None:
        """Stop all work now, drop what was not fetched, and let the iteration end with `error`."""
        while not self._events.empty():
            self._events.get_nowait()
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        for task in self._tasks:
            task.cancel()
        self._events.put_nowait(error)

    def _seen(self, delta: Delta) -> Delta:
        if delta.finish_reason is not None:
            self._unfinished -= 1
        return delta

    async def _run(self, choice: Choice, slot: Slot) -> None:
        try:
            await slot.wait()
            async with aclosing(deltas(self._pipeline, choice)) as found:
                async for delta in found:
                    if delta.finish_reason is not None:
                        slot.release()
                    self._events.put_nowait(delta)
        except Exception as error:  # handed to whoever iterates, who is the one to answer for it
            self._fail(error)
        finally:
            slot.release()
