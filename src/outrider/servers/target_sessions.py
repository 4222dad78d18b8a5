"""The sessions of a target server, by number, whatever stream they come over."""

from __future__ import annotations

import asyncio
from typing import Final

from outrider.errors import Overloaded, RequestError, SessionLost
from outrider.rpc import target_inference_pb2 as pb
from outrider.servers.answers import Stream, failure
from outrider.servers.held_session import HeldSession
from outrider.servers.target_checks import Checks
from outrider.servers.target_metrics import TargetMetrics
from outrider.targets import Target

__all__ = ["Sessions"]

_SLACK: Final = 16
"""Sessions beyond twice those that fit, some coming and some going."""


class Sessions:
    """Holds what gateways opened, until they release it or its lease ends. For one event loop.

    Args:
        target: decodes; stays the caller's.
        checks: what may be asked of it.
        metrics: where counts go.
        lease_s: seconds that a session outlives its stream.

    Attributes:
        draining: nothing is opened any more.
    """

    def __init__(
        self, target: Target, checks: Checks, metrics: TargetMetrics, *, lease_s: float
    ) -> None:
        self.target = target
        self.checks = checks
        self.metrics = metrics
        self.draining = False
        self._lease_s = lease_s
        self._held: dict[int, HeldSession] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._held)

    def take(self, action: pb.Action, stream: Stream) -> None:
        """Do what is asked, or answer why not. Never waits."""
        held = self._held.get(action.session)
        kind = action.WhichOneof("kind")
        if kind is None:
            unknown = RequestError(
                "the action has no kind that this server knows; gateway and server may differ in "
                "their version"
            )
            self._refuse(action, unknown, stream)
        elif held is not None:
            held.take(action, stream)
        elif kind == "open":
            self._open(action, stream)
        elif kind == "release":
            stream.answer(action.session, released=pb.Released())
        elif kind == "advance":
            lost = SessionLost("the session is not held here; open it again")
            self._refuse(action, lost, stream)

    def leave(self, stream: Stream) -> None:
        """The stream has ended; its sessions stop, and wait for another one to go on."""
        for held in list(stream.sessions):
            held.leave(self._lease_s)
        stream.sessions.clear()

    def forget(self, held: HeldSession) -> None:
        self._held.pop(held.number, None)
        if not self._held:
            self._empty.set()

    async def empty(self) -> None:
        """Wait until nothing is held."""
        await self._empty.wait()

    async def cut(self) -> None:
        """Stop and release everything, and wait for it."""
        self.draining = True
        for held in list(self._held.values()):
            held.cut()
        await self.empty()

    def _open(self, action: pb.Action, stream: Stream) -> None:
        most = 2 * self.target.occupancy()[1] + _SLACK
        if len(self._held) >= most:
            full = Overloaded(f"the server holds {len(self._held)} sessions and has no room")
            self._refuse(action, full, stream)
            return
        held = HeldSession(action.session, self)
        self._held[action.session] = held
        self._empty.clear()
        held.take(action, stream)

    def _refuse(
        self, action: pb.Action, error: RequestError | SessionLost | Overloaded, stream: Stream
    ) -> None:
        failed = failure(action, error)
        self.metrics.observe_failure(failed)
        stream.answer(action.session, failed=failed)
