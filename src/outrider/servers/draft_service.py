"""What a draft server does: requests checked, sessions found or begun, drafts asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from outrider.config import Settings
from outrider.drafters import DeclaringDrafter, Drafter, SessionView
from outrider.drafters.wire import (
    MAX_DRAFT_TOKENS,
    Description,
    ProposeRequest,
    ProposeResponse,
)
from outrider.errors import ContextLengthExceeded, DraftFailed, Overloaded, RequestError
from outrider.sampling import validate
from outrider.servers.draft_metrics import DraftMetrics
from outrider.servers.draft_sessions import Opening, Session, Sessions
from outrider.types import DRAFT_TOTAL, Draft, SampledDraft, SamplingParams

__all__ = ["DraftService", "SessionNotHeld"]

_MAX_NAME = 200


class SessionNotHeld(Exception):
    """The caller has to send the tokens of the session from `held` on."""

    def __init__(self, held: int) -> None:
        super().__init__(f"{held} tokens of the session are held")
        self.held = held


class DraftService:
    """Answers requests for drafts.

    Args:
        drafter: who drafts.
        description: what is said of it.
        settings: bounds.

    Attributes:
        description: as given.
        sessions: those held.
        metrics: what was counted.
    """

    def __init__(self, drafter: Drafter, description: Description, settings: Settings) -> None:
        self.description = description
        self.metrics = DraftMetrics()
        self.sessions = Sessions(
            drafter,
            most=settings.engine.max_sessions,
            idle_s=settings.draft_server.session_s,
            clock=time.monotonic,
        )
        self._drafter = drafter
        self._declaring = drafter if isinstance(drafter, DeclaringDrafter) else None
        self._max_running = settings.draft_server.max_concurrent
        self._running = 0
        self.metrics.sessions.set_function(lambda: len(self.sessions))
        self.metrics.running.set_function(lambda: self._running)

    async def propose(self, request: ProposeRequest) -> ProposeResponse:
        """A draft.

        Raises:
            RequestError: the request has no meaning; the message names the value.
            Overloaded: too many requests or sessions at a time.
            SessionNotHeld: the caller has to send more of the session.
            Superseded: a later request for the session came.
            DraftFailed: the drafter failed.
        """
        if self._running >= self._max_running:
            raise Overloaded(
                f"{self._running} requests are being worked on, which is all that this server "
                "takes (draft_server.max_concurrent); try again later"
            )
        started = time.perf_counter()
        self._running += 1
        try:
            self._check(request)
            if request.session_id:
                response = await self._in_session(request)
            else:
                response = await self._plain(request)
        finally:
            self._running -= 1
        self.metrics.latency.observe(time.perf_counter() - started)
        self.metrics.tokens.inc(len(response.tokens))
        return response

    async def release(self, names: Collection[str]) -> None:
        """Forget sessions; unknown ones are ignored."""
        for name in names:
            await self.sessions.end(name)

    async def _plain(self, request: ProposeRequest) -> ProposeResponse:
        opening = self._opening(request)
        name, session = await self.sessions.begin_nameless(opening, request.tokens)
        try:
            with self.sessions.turn(name, session):
                return await self._draft(session, len(request.tokens), request)
        finally:
            await self.sessions.end(name)

    async def _in_session(self, request: ProposeRequest) -> ProposeResponse:
        name = request.session_id
        session = await self._find(request)
        with self.sessions.turn(name, session):
            return await self._draft(session, request.base + len(request.tokens), request)

    async def _find(self, request: ProposeRequest) -> Session:
        """The session, with the tokens of the request."""
        name, base, new = request.session_id, request.base, request.tokens
        session = self.sessions.get(name)
        if session is None and base == 0:
            return await self.sessions.begin(name, self._opening(request), new)
        held = 0 if session is None else len(session.tokens)
        if session is None or base > held:
            self.metrics.lost.inc()
            raise SessionNotHeld(held)
        opening = self._opening(request) if base == 0 else session.opening
        common = session.tokens[base : base + len(new)]
        if opening == session.opening and common == new[: len(common)]:
            session.tokens.extend(new[len(common) :])
            return session
        # Tokens differ that were taken for committed: the cache keeps what both have in common.
        if base + len(new) < opening.prompt_length:
            raise SessionNotHeld(0)
        return await self.sessions.begin(name, opening, [*session.tokens[:base], *new])

    async def _draft(
        self, session: Session, length: int, request: ProposeRequest
    ) -> ProposeResponse:
        view = session.view(length, request.guess)
        room = self.description.context_length - length - len(request.guess)
        most = min(request.num_tokens, room)
        if most < 1:
            return ProposeResponse([])
        declaring = request.return_distribution or session.opening.noise_key is None
        while True:
            try:
                if not declaring:
                    return ProposeResponse(
                        list((await self._drafter.propose(view, most)).token_ids)
                    )
                return await self._drawn(view, most, request.return_distribution)
            except DraftFailed as error:
                cause = error.__cause__
                if isinstance(cause, RequestError):
                    raise cause from None
                if not isinstance(cause, Overloaded):
                    raise
                if not await self.sessions.give_up_idle():
                    raise cause from None

    async def _drawn(self, view: SessionView, most: int, tell: bool) -> ProposeResponse:
        if self._declaring is None:
            raise RequestError(
                f"{self.description.name} declares no distributions; send a noise_key, and no "
                "return_distribution",
                param="noise_key",
            )
        await self._declaring.prepare(view)
        draft = await self._declaring.draw(view, most)
        if isinstance(draft, Draft):
            return ProposeResponse(list(draft.token_ids), [])
        response = ProposeResponse(list(draft.token_ids), _logprobs(draft))
        if tell:
            response.support = [row.token_ids.tolist() for row in draft.rows]
            response.counts = [row.counts.tolist() for row in draft.rows]
        return response

    def _check(self, request: ProposeRequest) -> None:
        if not 1 <= request.num_tokens <= MAX_DRAFT_TOKENS:
            raise RequestError(
                f"num_tokens is {request.num_tokens}; ask for 1 to {MAX_DRAFT_TOKENS}",
                param="num_tokens",
            )
        if request.base < 0 or (request.base and not request.session_id):
            raise RequestError(
                f"base is {request.base}; it counts tokens held of a session_id", param="base"
            )
        if len(request.session_id) > _MAX_NAME or not (
            request.session_id.isprintable() and len(request.tenant) <= _MAX_NAME
        ):
            raise RequestError(
                f"session_id and tenant are printable and of at most {_MAX_NAME} characters",
                param="session_id",
            )
        if not request.tokens and not request.base:
            raise RequestError("tokens is empty; send at least one", param="tokens")
        self.metrics.read_tokens.inc(len(request.tokens))
        self._check_ids("tokens", request.tokens)
        self._check_ids("guess", request.guess)
        length, most = request.base + len(request.tokens), self.description.context_length
        if length + len(request.guess) > most:
            raise ContextLengthExceeded(
                f"the context has {length + len(request.guess)} tokens; that of "
                f"{self.description.name} is {most}: draft nothing beyond it",
                param="tokens",
            )

    def _check_ids(self, param: str, token_ids: list[int]) -> None:
        size = self.description.vocab_size
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < size):
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < size)
            shown = str(wrong) if abs(wrong) < 10**20 else "a number of over 20 digits"
            raise RequestError(
                f"{param} has {shown}; ids of {self.description.name} lie in 0..{size - 1}",
                param=param,
            )

    def _opening(self, request: ProposeRequest) -> Opening:
        length = len(request.tokens)
        prompt_length = length if request.prompt_length is None else request.prompt_length
        if not 0 <= prompt_length <= length:
            raise RequestError(
                f"prompt_length is {prompt_length}; it counts those of the {length} tokens that "
                "are the prompt",
                param="prompt_length",
            )
        key = request.noise_key
        if (key is not None and not 0 <= key < 2**64) or not 0 <= request.choice < 2**31:
            raise RequestError(
                "noise_key must fit in 64 bits without a sign, choice in 31", param="noise_key"
            )
        params = self._params(request, prompt_length)
        validate(params, vocab_size=self.description.vocab_size)
        return Opening(prompt_length, params, key, request.choice, request.tenant)

    def _params(self, request: ProposeRequest, prompt_length: int) -> SamplingParams:
        """How to sample. `max_tokens` says how far the sequence may grow."""
        if request.sampling is not None:
            if request.temperature is not None:
                raise RequestError(
                    "temperature and sampling are both set; give it in sampling alone",
                    param="temperature",
                )
            return request.sampling.params()
        if request.session_id:
            growth = self.description.context_length - prompt_length
        else:
            growth = len(request.tokens) - prompt_length + request.num_tokens + len(request.guess)
        return SamplingParams(temperature=request.temperature or 0.0, max_tokens=max(growth, 1))


def _logprobs(draft: SampledDraft) -> list[float]:
    """Of the drafted tokens, in the distributions that they were drawn from."""
    return [
        math.log(int(row.counts[row.token_ids == token_id][0]) / DRAFT_TOTAL)
        for token_id, row in zip(draft.token_ids, draft.rows, strict=True)
    ]
