"""A target on another machine, over one gRPC stream for all sessions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Final

from outrider.config import PeerSettings
from outrider.errors import OutriderError, RequestError, SessionLost, TargetFailed
from outrider.rpc import target_inference_pb2 as pb
from outrider.rpc.channel import Address
from outrider.targets.base import CacheUse, Opened, OpenRequest
from outrider.targets.remote_link import RemoteLink
from outrider.targets.remote_session import RemoteSession
from outrider.targets.wire import encode_open
from outrider.types import Draft, SampledDraft, TargetInfo, Verification

__all__ = ["RemoteTarget"]

_RELEASE_S: Final = 5.0
"""Seconds that a release waits for its answer."""
_PAUSE_S: Final = 0.25
"""Seconds between openings at a server that shuts down."""


class RemoteTarget:
    """Decodes at a target server. Connects when it is first asked for anything.

    A broken stream is made anew, and whatever runs is asked for again: the server repeats what it
    had answered, and nothing is lost or doubled. Once `peers.patience_s` is over, what waits fails.

    Args:
        address: of the server.
        peers: how to get in, and for how long to try.
        spare: whether another server could go on with the sessions. Then they end with
            `SessionLost` as soon as this one cannot be reached.
    """

    def __init__(
        self, address: Address, peers: PeerSettings, *, spare: Callable[[], bool] = lambda: False
    ) -> None:
        self._address = address
        self._patience_s = peers.patience_s
        self._spare = spare
        self._sessions = _Sessions()
        self._link = RemoteLink(address, peers, self._sessions, spare)
        self._sessions.post = self._link.post

    @property
    def available(self) -> bool:
        """Whether the server was there when last tried, and takes sessions."""
        return self._link.reachable and not self._link.draining

    async def probe(self) -> bool:
        """See `RemoteLink.probe`."""
        return await self._link.probe()

    async def describe(self) -> TargetInfo:
        """What the target is. A server that does not answer is waited for with patience.

        Raises:
            TargetFailed: it cannot be reached, or what it says makes no sense.
            ConfigError: it speaks another version of the protocol, or does not let us in.
        """
        return (await self._link.describe()).info

    async def open(self, request: OpenRequest) -> Opened:
        """See `Target.open`.

        Raises:
            RequestError: a parameter is out of every range.
            SessionLost: the server cannot be reached or shuts down, and another could take it.
            TargetFailed: likewise, and there is no other.
        """
        info = await self.describe()
        await self.release(request.session_id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while True:
            try:
                return await self._open(request, info)
            except SessionLost as error:
                if self._spare():
                    raise
                if loop.time() >= deadline:
                    raise TargetFailed(
                        f"the target server at {self._address} takes no sessions: {error}; start "
                        "another one in its place"
                    ) from None
            # One that shuts down is soon followed by another at the same address, or by none.
            await asyncio.sleep(_PAUSE_S)

    async def advance(
        self,
        session_id: str,
        round_id: int,
        position: int,
        draft: Draft | SampledDraft,
        run: int,
    ) -> AsyncGenerator[Verification]:
        session = self._sessions.by_id.get(session_id)
        if session is None or not session.opening.done():
            raise SessionLost(f"session {session_id} is not open at {self._address}")
        if isinstance(draft, SampledDraft):
            raise TargetFailed("a draft to be judged by ratios cannot be sent to a target server")
        asked = session.ask(round_id, position, draft, run)
        try:
            while (answer := await asked.get()) is not None:
                yield answer
        finally:
            session.abandon(asked)

    async def release(self, session_id: str) -> None:
        """See `Target.release`; waits for the server, but not for long."""
        session = self._sessions.by_id.get(session_id)
        if session is None:
            return
        self._sessions.remove(session)
        if not self._link.up:
            self._sessions.orphans.append(session.number)
            return
        released = self._sessions.releasing[session.number] = _future()
        session.post(pb.Action(session=session.number, release=pb.Release()))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_RELEASE_S):
                    await released
        finally:
            self._sessions.releasing.pop(session.number, None)

    async def close(self) -> None:
        await self._link.close()
        self._sessions.fail(lambda: TargetFailed("the gateway shuts down"))

    def occupancy(self) -> tuple[int, int]:
        """Sessions of this gateway, and sessions that fit; other gateways may hold some as well."""
        described = self._link.described
        return len(self._sessions.by_id), 0 if described is None else described.max_sessions

    def cache_use(self) -> CacheUse | None:
        """How many tokens the server has memory for; of bytes it says nothing."""
        described = self._link.described
        if described is None or described.cache_tokens is None:
            return None
        return CacheUse(described.cache_tokens, 0, 0, 0)

    async def _open(self, request: OpenRequest, info: TargetInfo) -> Opened:
        opening: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        number = secrets.randbits(64)
        try:
            action = pb.Action(session=number, open=encode_open(request))
        except ValueError as error:
            raise RequestError(f"a parameter is none that a target server takes: {error}") from None
        session = RemoteSession(request, action, number, info, self._link.post, opening)
        self._sessions.add(session)
        if self._link.up:
            session.post(action)
        else:
            self._link.keep()  # a new stream begins with what is not answered yet
        try:
            return await opening
        except BaseException:
            if self._sessions.remove(session):
                if self._link.up:
                    session.post(pb.Action(session=session.number, release=pb.Release()))
                else:
                    self._sessions.orphans.append(session.number)
            raise


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


class _Sessions:
    """What goes over the stream; see `remote_link.Carried`.

    Attributes:
        by_id: those that are held, or being opened.
        releasing: by number, those whose release is not answered.
        orphans: numbers of those released while there was no stream.
        post: sends an action.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, RemoteSession] = {}
        self.releasing: dict[int, asyncio.Future[None]] = {}
        self.orphans: list[int] = []
        self.post: Callable[[pb.Action], None] = lambda action: None
        self._by_number: dict[int, RemoteSession] = {}

    def add(self, session: RemoteSession) -> None:
        self.by_id[session.request.session_id] = self._by_number[session.number] = session

    def remove(self, session: RemoteSession) -> bool:
        """Forget a session; whether it was held."""
        if self._by_number.pop(session.number, None) is None:
            return False
        del self.by_id[session.request.session_id]
        session.fail(TargetFailed("the session was released"))
        return True

    def needed(self) -> bool:
        return bool(self.by_id)

    def begin(self) -> None:
        for number in self.orphans:
            self.post(pb.Action(session=number, release=pb.Release()))
        self.orphans.clear()
        for session in self.by_id.values():
            session.ask_again()

    def take(self, event: pb.Event) -> None:
        kind = event.WhichOneof("kind")
        if kind == "released":
            released = self.releasing.pop(event.session, None)
            if released is not None and not released.done():
                released.set_result(None)
            return
        session = self._by_number.get(event.session)
        if session is None:
            return  # released meanwhile
        if kind == "verified":
            session.verified(event.verified)
        elif kind == "ended":
            session.ended(event.ended.round_id)
        elif kind == "opened":
            session.opened(event.opened)
        elif kind == "failed":
            session.failed(event.failed)

    def broken(self) -> None:
        """Nobody will answer the releases; the server is told once more over another stream."""
        for number, released in self.releasing.items():
            self.orphans.append(number)
            if not released.done():
                released.set_result(None)
        self.releasing.clear()

    def refuse(self, error: OutriderError) -> None:
        for session in self.by_id.values():
            if not session.opening.done():
                session.fail(error)

    def fail(self, error: Callable[[], OutriderError]) -> None:
        sessions = list(self.by_id.values())
        self.by_id.clear()
        self._by_number.clear()
        self.orphans.clear()  # their leases end
        for session in sessions:
            session.fail(error())
