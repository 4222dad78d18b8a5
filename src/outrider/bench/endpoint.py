"""Answers of an OpenAI-compatible server, as its streams bring them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from outrider.bench.answer import Answer, Counting, Drafts, check_length
from outrider.bench.answer import Chunk as Arrival
from outrider.bench.recording import Clock
from outrider.bench.workload import Question
from outrider.endpoints import Chunk, Endpoint, Event, Refused, Usage, complaint, decode
from outrider.errors import RequestError, TargetFailed

__all__ = ["EndpointSubject"]

# What a server is asked to tell, the best first; not every server takes every field.
_TELLING: Final[tuple[dict[str, Any], ...]] = (
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream_options": {"include_usage": True}},
    {},
)


class EndpointSubject:
    """One server, and what it is asked with.

    Args:
        endpoint: whom to ask.
        model: under which id.
        fields: of every request, `max_tokens` among them.
        label: what it is, on one line.
        clock: for times of arrival.
    """

    def __init__(
        self, endpoint: Endpoint, model: str, fields: Mapping[str, Any], label: str, clock: Clock
    ) -> None:
        self.label = label
        self._endpoint = endpoint
        self._fixed = {"model": model, "stream": True, **fields}
        self._max_tokens: int = fields["max_tokens"]
        self._clock = clock
        self._telling: dict[str, Any] | None = None

    async def ask(self, question: Question) -> Answer:
        """One streamed answer.

        Until one is given, a refused request is sent again with fewer wishes: not every server
        tells its usage.

        Raises:
            Refused, RequestError: the server does not take the request, or did not heed it.
            TargetFailed: it cannot be reached, or failed.
        """
        if self._telling is not None:
            return await self._ask(question, self._telling)
        refusals = []
        for telling in _TELLING:
            try:
                answer = await self._ask(question, telling)
            except Refused as error:
                refusals.append(error)
            else:
                self._telling = telling
                return answer
        raise refusals[0]

    async def _ask(self, question: Question, telling: dict[str, Any]) -> Answer:
        path, body = _request(question)
        body |= self._fixed | telling
        asked_at = self._clock()
        url = f"{self._endpoint.url}/{path}"
        reading = _Reading(url)
        async with aclosing(self._endpoint.stream(path, body, self._clock)) as events:
            async for event in events:
                reading.add(event)
        if "speculation" in self._fixed and not reading.outrider:
            raise RequestError(
                f"{url} does not say how it speculated, so it is not Outrider and speculation "
                "cannot be set per request; start it twice, and give the second URL as --baseline"
            )
        return reading.answer(asked_at, self._max_tokens)


def _request(question: Question) -> tuple[str, dict[str, Any]]:
    if question.messages is None:
        return "completions", {"prompt": question.text}
    return "chat/completions", {"messages": list(question.messages)}


class _Reading:
    """Of one stream, chunk by chunk.

    Attributes:
        outrider: it tells of its speculation as only our own server does.
    """

    def __init__(self, url: str) -> None:
        self.outrider = False
        self._url = url
        self._parts: list[str] = []
        self._seen: list[tuple[float, bool, int | None]] = []  # when, any text, usage so far
        self._usage: Usage | None = None
        self._drafts: Drafts | None = None
        self._finish_reason: str | None = None

    def add(self, event: Event) -> None:
        chunk = decode(event.data, Chunk)
        if chunk is None or chunk.error is not None:
            said = complaint(event.data)
            raise TargetFailed(f"{self._url} broke its stream off: {said!r}")
        usage = chunk.usage
        if chunk.choices:
            so_far = None if usage is None else usage.completion_tokens
            self._seen.append((event.at, bool(chunk.text or chunk.thought), so_far))
        self._parts.append(chunk.text)
        self._usage = usage or self._usage
        self._finish_reason = chunk.finish_reason or self._finish_reason
        self.outrider = self.outrider or chunk.speculation is not None
        if chunk.account is not None:
            account = chunk.account
            drafted, accepted = account.drafted_tokens, account.accepted_tokens
            self._drafts = Drafts(drafted, accepted, account.rounds)

    def answer(self, asked_at: float, max_tokens: int) -> Answer:
        usage = self._usage
        arrivals, counting = _counted(self._seen, usage)
        told = None if usage is None else usage.completion_tokens
        tokens = len(arrivals) if told is None else told
        check_length(tokens if arrivals else 0, max_tokens, self._url)
        return Answer(
            asked_at=asked_at,
            chunks=tuple(arrivals),
            tokens=tokens,
            counting=counting,
            text="".join(self._parts),
            finish_reason=self._finish_reason,
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
            drafts=self._drafts,
        )


def _counted(
    seen: Sequence[tuple[float, bool, int | None]], usage: Usage | None
) -> tuple[list[Arrival], Counting]:
    """The chunks that brought tokens, with as many as is known."""
    spoken = [at for at, text, _ in seen if text]
    totals = [so_far for _, _, so_far in seen]
    if seen and all(so_far is not None for so_far in totals):
        arrivals, before = [], 0
        for at, _, so_far in seen:
            if so_far is not None and so_far > before:
                arrivals.append(Arrival(at, so_far - before))
                before = so_far
        return arrivals, Counting.EACH
    if usage is None:
        return [Arrival(at, 1) for at in spoken], Counting.CHUNKS
    # The token that ends an output has no text, so it may have no chunk.
    if usage.completion_tokens in (len(spoken), len(spoken) + 1):
        return [Arrival(at, 1) for at in spoken], Counting.ONE
    return [Arrival(at, None) for at in spoken], Counting.TOTAL
