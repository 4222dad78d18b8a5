"""Drafts from draft servers over HTTP, with latency and faults kept away from the request."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from outrider.drafters.base import SessionView
from outrider.drafters.draft_server import Busy, DraftServer, OurFault, SessionGone
from outrider.drafters.fleet import Fleet
from outrider.drafters.wire import MAX_DRAFT_TOKENS, ProposeRequest, Sampling
from outrider.errors import DraftFailed
from outrider.types import NO_DRAFT, Draft, DrafterInfo, TargetInfo

__all__ = ["RemoteDrafter"]

_FIRST_S: Final = 30.0
"""Seconds that a draft may take for which the server has a long context to read."""

_LATER_S: Final = 2.0
"""Seconds that any other may take, if nobody gives it up before."""

_RELEASE_S: Final = 1.0

_log = structlog.get_logger("outrider.remote")


@dataclass(frozen=True, slots=True)
class _Answer:
    """Drafted tokens; `resent`: the server had lost what it was sent before."""

    tokens: list[int]
    resent: bool = False


@dataclass(slots=True)
class _Placed:
    """A session at a server, which holds at least `sent` of its tokens. `call` is the latest."""

    server: DraftServer
    sent: int = 0
    call: asyncio.Task[_Answer] | None = None


class RemoteDrafter:
    """Asks one draft server, or several that serve the same model.

    A session stays with its server while that answers.

    Args:
        fleet: the servers.
        target: what is drafted for.
        deadline_s: longest that it makes sense to wait for a draft.
        clock: in seconds.
    """

    def __init__(
        self,
        fleet: Fleet,
        target: TargetInfo,
        *,
        deadline_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._target = target
        self._most_s = deadline_s
        self._clock = clock
        self._instance = secrets.token_hex(6)  # two gateways may use the same names for sessions
        self._placed: dict[str, _Placed] = {}
        self._info: DrafterInfo | None = None
        self._released: dict[DraftServer, list[str]] = {}

    async def describe(self) -> DrafterInfo:
        """What the servers have in common. One that cannot be reached is asked again later.

        Raises:
            VocabularyMismatch: one serves a model that does not share the target's tokens.
            ConfigError: two serve different models.
        """
        if self._info is None:
            try:
                await self._fleet.meet()
            except BaseException:
                await self.close()
                raise
            described = [server.description for server in self._fleet.servers if server.description]
            lengths = [description.context_length for description in described]
            self._info = DrafterInfo(
                name=self._fleet.name,
                deterministic=all(description.deterministic for description in described),
                ahead=True,
                context_length=min(lengths, default=None),
                model_hash=described[0].model_hash if described else None,
                vocab_fingerprint=self._target.vocab_fingerprint,
            )
        return self._info

    def deadline_s(self, max_tokens: int) -> float:
        """Seconds after which a draft of so many tokens is no longer to be expected.

        Not meant for the first draft of a session, for which the server reads the prompt.
        """
        paces = [server.pace for server in self._fleet.servers if server.breaker.refusal() is None]
        return max((pace.deadline_s(max_tokens) for pace in paces), default=self._most_s)

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        placed = self._place(view.session_id)
        server, first = placed.server, placed.sent == 0
        most = min(max_tokens, _room(server, view))
        if most < 1:
            return NO_DRAFT
        limit_s = _FIRST_S if first else max(_LATER_S, self._most_s)
        started = self._clock()
        call = placed.call = asyncio.create_task(self._ask(placed, view, most))
        try:
            await asyncio.wait((call,), timeout=limit_s)
        except asyncio.CancelledError:
            self._fleet.let_end(call)
            self._observe_given_up(server, self._clock() - started, most, first=first)
            raise
        try:
            answer = _result(call, server, limit_s)
        except OurFault:
            raise
        except Busy as error:
            server.breaker.busy(error.retry_after_s)
            raise
        except DraftFailed:
            self._fail(view.session_id, server)
            raise
        self._observe(server, self._clock() - started, most, first=first or answer.resent)
        return Draft(tuple(answer.tokens), self._fleet.name)

    async def release(self, session_id: str) -> None:
        placed = self._placed.pop(session_id, None)
        if placed is None:
            return
        server = placed.server
        server.sessions -= 1
        if server.plain or server.breaker.refusal() is not None:
            return  # there is nothing to forget, or it forgets by itself in time
        waiting = self._released.setdefault(server, [])
        waiting.append(self._remote_id(session_id))
        if len(waiting) == 1:
            self._fleet.start(self._tell_released(server))

    async def close(self) -> None:
        """Let servers know which sessions have ended, and close all connections."""
        await self._fleet.close()

    async def _ask(self, placed: _Placed, view: SessionView, most: int) -> _Answer:
        server = placed.server
        try:
            if server.plain:
                answer = _Answer(await server.propose(self._fleet.http, _plain(view, most)))
            else:
                answer = await self._ask_in_session(placed, view, most)
        except SessionGone:
            raise DraftFailed(
                f"draft server {server.name} loses what it was sent; does it have room for more "
                "sessions?"
            ) from None
        placed.sent = view.length
        size = self._target.vocab_size
        for token_id in answer.tokens:
            if not 0 <= token_id < size:
                raise DraftFailed(
                    f"draft server {server.name} drafted token id {str(token_id)[:20]}; ids of "
                    f"the target lie in 0..{size - 1}"
                )
        return answer

    async def _ask_in_session(self, placed: _Placed, view: SessionView, most: int) -> _Answer:
        server, http = placed.server, self._fleet.http
        base = min(placed.sent, view.length)
        try:
            return _Answer(await server.propose(http, self._request(view, base, most)))
        except SessionGone as gone:
            self._check_model(server, gone)
            if not 0 <= gone.held < base:
                raise DraftFailed(
                    f"draft server {server.name} asked for tokens from {gone.held} on, and was "
                    f"sent those from {base} on"
                ) from None
            placed.sent = gone.held
        if placed.call is not asyncio.current_task():
            raise DraftFailed("given up")  # to nobody: a later call sends what is missing
        request = self._request(view, placed.sent, most)
        return _Answer(await server.propose(http, request), resent=True)

    def _request(self, view: SessionView, base: int, most: int) -> ProposeRequest:
        request = ProposeRequest(
            session_id=self._remote_id(view.session_id),
            base=base,
            tokens=list(view.tokens[base : view.length]),
            guess=list(view.guess),
            num_tokens=most,
        )
        if base == 0:
            request.prompt_length = view.prompt_length
            request.noise_key = view.noise_key
            request.choice = view.choice
            request.tenant = view.tenant
            request.sampling = Sampling.of(view.sampling)
        return request

    def _check_model(self, server: DraftServer, gone: SessionGone) -> None:
        """A server that was started anew may serve something else."""
        known = server.description
        if known is not None and gone.model_hash and gone.model_hash != known.model_hash:
            server.breaker.trip()
            raise DraftFailed(f"draft server {server.name} serves another model than before")

    def _remote_id(self, session_id: str) -> str:
        return f"{self._instance}:{session_id}"

    def _place(self, session_id: str) -> _Placed:
        """Where the session is drafted for. Raises `DraftFailed` if nowhere."""
        placed = self._placed.get(session_id)
        if placed is not None and placed.server.breaker.refusal() is None:
            return placed
        server = self._fleet.choose()
        self._leave(session_id)
        server.sessions += 1
        self._placed[session_id] = _Placed(server)
        return self._placed[session_id]

    def _leave(self, session_id: str) -> None:
        placed = self._placed.pop(session_id, None)
        if placed is not None:
            placed.server.sessions -= 1

    def _fail(self, session_id: str, server: DraftServer) -> None:
        server.breaker.failed()
        if len(self._fleet.servers) > 1:
            self._leave(session_id)  # there may be a better one

    def _observe(self, server: DraftServer, seconds: float, most: int, *, first: bool) -> None:
        if first:
            server.breaker.succeeded()
            return
        server.pace.took(seconds, most)
        if seconds > self._most_s:
            server.breaker.failed()  # right, but of no use
        else:
            server.breaker.succeeded()

    def _observe_given_up(
        self, server: DraftServer, seconds: float, most: int, *, first: bool
    ) -> None:
        """A call was cancelled: for its lateness, or because its session has ended."""
        if first:
            if seconds >= max(_LATER_S, self._most_s):
                server.breaker.failed()
            return
        if seconds < server.pace.deadline_s(most):
            return
        server.pace.gave_up(seconds, most)
        if seconds >= self._most_s:
            server.breaker.failed()

    async def _tell_released(self, server: DraftServer) -> None:
        await asyncio.sleep(0)  # sessions that end together are told together
        names = self._released.pop(server)
        try:
            async with asyncio.timeout(_RELEASE_S):
                await server.release(self._fleet.http, names)
        except (DraftFailed, TimeoutError) as error:
            # It forgets them by itself in time.
            _log.info("draft_server_not_told", server=server.name, reason=str(error))


def _result(call: asyncio.Task[_Answer], server: DraftServer, limit_s: float) -> _Answer:
    if call.done():
        return call.result()
    call.cancel()
    raise DraftFailed(f"draft server {server.name} did not answer within {limit_s:g} s")


def _room(server: DraftServer, view: SessionView) -> int:
    """Tokens that the server can draft behind `view`, as far as is known."""
    if server.description is None:
        return MAX_DRAFT_TOKENS
    room = server.description.context_length - view.length - len(view.guess)
    return min(room, server.description.max_tokens)


def _plain(view: SessionView, most: int) -> ProposeRequest:
    """For a server that knows nothing of sessions or noise: greedy tokens match best."""
    tokens = [*view.tokens[: view.length], *view.guess]
    return ProposeRequest(tokens=tokens, num_tokens=most, temperature=0.0)
