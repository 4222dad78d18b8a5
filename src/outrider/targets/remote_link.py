"""Keeps a stream to one target server: makes it, makes it anew when it breaks, gives up at last."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, Protocol

import grpc
import structlog

from outrider.config import PeerSettings
from outrider.errors import OutriderError, Overloaded, SessionLost, TargetFailed
from outrider.rpc import target_inference_pb2 as pb
from outrider.rpc.channel import Address
from outrider.targets.decode_stream import Break, DecodeStream
from outrider.targets.remote_calls import Described, RemoteCalls

__all__ = ["Carried", "RemoteLink"]

_SHORTEST_S: Final = 0.05
_LONGEST_S: Final = 1.0
"""Seconds between attempts to reach a server again."""
_HASTE_S: Final = 1.0
"""Seconds that one attempt may take while another server could go on with the sessions."""
_FINAL: Final = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.FAILED_PRECONDITION,
)
"""What no patience helps against."""

_log = structlog.get_logger("outrider.targets")


class Carried(Protocol):
    """What a link carries: the sessions."""

    def needed(self) -> bool:
        """Whether anybody waits for a stream, or will."""
        ...

    def begin(self) -> None:
        """There is a new stream: post what is not answered yet."""
        ...

    def take(self, event: pb.Event) -> None:
        """The server said something. Must not raise."""
        ...

    def broken(self) -> None:
        """The stream is gone, with what was on its way."""
        ...

    def refuse(self, error: OutriderError) -> None:
        """The server will not take what is being opened."""
        ...

    def fail(self, error: Callable[[], OutriderError]) -> None:
        """There will be no stream: everything that is waited for fails with an error of its own."""
        ...


class RemoteLink:
    """For one event loop.

    Args:
        address: of the server.
        peers: how to get in, and for how long to try.
        carried: what goes over the stream.
        spare: whether another server could go on with the sessions; then a second failed attempt to
            reach this one ends them with `SessionLost`.

    Attributes:
        reachable: whether the server was when last tried.
        draining: it said that it shuts down.
        described: what it said of itself; None before it was first asked.
    """

    def __init__(
        self,
        address: Address,
        peers: PeerSettings,
        carried: Carried,
        spare: Callable[[], bool],
    ) -> None:
        self.reachable = False
        self.draining = False
        self.described: Described | None = None
        self._address = address
        self._patience_s = peers.patience_s
        self._carried = carried
        self._spare = spare
        self._calls = RemoteCalls(address, peers)
        self._describing = asyncio.Lock()
        self._checked = False  # what the server is, since the last break
        self._given_up = False
        self._stream: DecodeStream | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """Whether there is a stream."""
        return self._stream is not None

    async def describe(self) -> Described:
        """What the server says of itself; it is waited for with patience the first time.

        Raises:
            TargetFailed, ConfigError: see `RemoteCalls`.
        """
        async with self._describing:
            if self.described is None:
                await self._calls.wait(self._patience_s)
                described = await self._check_same()
                self._found(None)
                self.keep()  # a stream is what tells of a server that goes away
                return described
            return self.described

    async def probe(self) -> bool:
        """Whether the server can be reached and takes sessions.

        Raises:
            TargetFailed, ConfigError: what it says makes no sense, or not that of before.
        """
        broken = await self._check(_HASTE_S)
        self._found(broken)
        if broken is None:
            self.keep()
        return broken is None

    def post(self, action: pb.Action) -> None:
        """Send, if there is a stream; a new one begins with what is not answered yet."""
        if self._stream is not None:
            self._stream.post(action)

    def keep(self) -> None:
        """See to it that there is a stream, or will be."""
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        await self._calls.close()

    async def _check(self, timeout_s: float) -> Break | None:
        """Whether the server takes sessions, and is still the one that it was."""
        broken = await self._calls.health(timeout_s)
        if broken is None and not self._checked:
            await self._check_same()
        return broken

    async def _check_same(self) -> Described:
        before, now = self.described, await self._calls.describe()
        if before is not None and _identity(before) != _identity(now):
            raise TargetFailed(
                f"the target server at {self._address} serves {now.info.model_id} with hash "
                f"{now.info.model_hash} now, and before {before.info.model_id} with "
                f"{before.info.model_hash}; restart the gateway, or the server with that model"
            )
        self.described, self._checked = now, True
        return now

    def _found(self, broken: Break | None) -> None:
        if broken is None:
            self.reachable, self.draining, self._given_up = True, False, False
        else:
            self.reachable = self._checked = False

    async def _keep(self) -> None:
        try:
            await self._try_on()
        except Exception:
            _log.exception("target_stream_failed", target=str(self._address))
            self._carried.fail(lambda: TargetFailed("the gateway failed; its log says why"))

    async def _try_on(self) -> None:
        """Make a stream, and another when it breaks, until nobody needs one or patience ends."""
        loop = asyncio.get_running_loop()
        since, attempts = loop.time(), 0
        patience_s = _HASTE_S if self._given_up else self._patience_s
        while True:
            began = loop.time()
            broken, heard = await self._live(max(since + patience_s - began, _HASTE_S))
            now = loop.time()
            if heard or now - began > self._patience_s:
                since, attempts, patience_s = now, 0, self._patience_s
            self._found(broken)
            _log.info("target_stream_broken", target=str(self._address), reason=broken.reason)
            if broken.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                # Too many streams, or too large a message: not to be tried again and again.
                told = f"the target server at {self._address} refuses: {broken.reason}"
                self._carried.refuse(Overloaded(told))
            if not self._carried.needed():
                return
            final = broken.code in _FINAL or now - since >= patience_s
            if final or (self._spare() and attempts > 0):
                self._give_up(broken)
                return
            if attempts > 0:
                pause = min(_SHORTEST_S * 2**attempts, _LONGEST_S)
                await asyncio.sleep(pause * (0.5 + secrets.randbelow(512) / 1024))
            attempts += 1

    async def _live(self, patience_s: float) -> tuple[Break, bool]:
        """One stream from its making to its break, and whether the server said anything."""
        if not self._checked:
            try:
                broken = await self._check(_HASTE_S if self._spare() else patience_s)
            except OutriderError as error:
                return Break(str(error), grpc.StatusCode.FAILED_PRECONDITION), False
            if broken is not None:
                return broken, False
        self._stream = stream = DecodeStream(self._calls.decode(), self._take)
        self._found(None)
        self._carried.begin()
        try:
            return await stream.run(), stream.heard
        finally:
            self._stream = None
            self._carried.broken()

    def _take(self, event: pb.Event) -> None:
        if event.HasField("failed") and event.failed.reason == pb.DRAINING:
            self.draining = True
        self._carried.take(event)

    def _give_up(self, broken: Break) -> None:
        told = f"the target server at {self._address} cannot be used: {broken.reason}"
        lost = self._spare()
        self._given_up = True
        _log.warning("target_given_up", target=str(self._address), reason=broken.reason)
        self._carried.fail(
            lambda: (
                SessionLost(told)
                if lost
                else TargetFailed(f"{told}; see that it runs, with the same peers.token and TLS")
            )
        )


def _identity(described: Described) -> tuple[object, ...]:
    info = described.info
    return info.model_hash, info.vocab_size, info.vocab_fingerprint
