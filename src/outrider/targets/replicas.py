"""Several target servers of one model as one target."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from outrider.config import PeerSettings
from outrider.errors import ConfigError, OutriderError, Overloaded, SessionLost, TargetFailed
from outrider.rpc.channel import Address
from outrider.targets.base import CacheUse, Opened, OpenRequest
from outrider.targets.placement import placement_key, rank
from outrider.targets.remote import RemoteTarget
from outrider.types import Draft, SampledDraft, TargetInfo, Verification

__all__ = ["ReplicatedTarget"]

_PROBE_S: Final = 1.0
"""Seconds between questions whether a server is back."""
_GRACE_S: Final = 2.0
"""Seconds that the start waits for further servers, once one has answered."""
_ROOM_S: Final = 0.1
"""Seconds between attempts to find room for a session that runs already."""

_log = structlog.get_logger("outrider.targets")


class ReplicatedTarget:
    """Gives every session to one server, where it stays while both live.

    A session whose server goes away ends with `SessionLost`, and is placed at another one when it
    is opened again. A server that went away is asked every second whether it is back.

    Args:
        addresses: of at least two servers of the same model.
        peers: how to get in, and for how long to try.
    """

    def __init__(self, addresses: Sequence[Address], peers: PeerSettings) -> None:
        self._patience_s = peers.patience_s
        self._replicas = {
            str(address): RemoteTarget(address, peers, spare=partial(self._spare, str(address)))
            for address in addresses
        }
        self._members: dict[str, TargetInfo] = {}
        self._strangers: dict[str, str] = {}  # why the others are left out
        self._homes: dict[str, RemoteTarget] = {}
        self._info: TargetInfo | None = None
        self._probing: asyncio.Task[None] | None = None

    async def describe(self) -> TargetInfo:
        """What all servers that answered have in common. At least one has to.

        Raises:
            TargetFailed: none can be reached.
            ConfigError: two serve different models, or none lets us in.
        """
        if self._info is None:
            errors = await self._gather()
            if not self._members:
                raise next(iter(errors.values()))
            for name, error in errors.items():
                self._leave_out(name, str(error))
            self._info = _common(list(self._members.values()))
            self._probing = asyncio.create_task(self._probe())
        return self._info

    async def open(self, request: OpenRequest) -> Opened:
        """See `Target.open`. A session that ran already waits for room, with patience."""
        await self.describe()
        await self.release(request.session_id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while True:
            try:
                return await self._open(request)
            except Overloaded:
                if request.epoch == 0 or loop.time() >= deadline:
                    raise
            except SessionLost as error:
                if loop.time() >= deadline:
                    raise TargetFailed(f"no target server takes the session: {error}") from None
            await asyncio.sleep(_ROOM_S)

    def advance(
        self,
        session_id: str,
        round_id: int,
        position: int,
        draft: Draft | SampledDraft,
        run: int,
    ) -> AsyncGenerator[Verification]:
        # Where a session is not open, any server says so.
        home = self._homes.get(session_id) or next(iter(self._replicas.values()))
        return home.advance(session_id, round_id, position, draft, run)

    async def release(self, session_id: str) -> None:
        home = self._homes.pop(session_id, None)
        if home is not None:
            await home.release(session_id)

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
        await asyncio.gather(*(replica.close() for replica in self._replicas.values()))

    def occupancy(self) -> tuple[int, int]:
        """Of all servers that were there once: those that are away come back."""
        found = [self._replicas[name].occupancy() for name in self._members]
        return sum(held for held, _ in found), sum(fits for _, fits in found)

    def cache_use(self) -> CacheUse | None:
        """Of all servers together, if each one's is bounded."""
        found = [self._replicas[name].cache_use() for name in self._members]
        tokens = [use.tokens for use in found if use is not None]
        return CacheUse(sum(tokens), 0, 0, 0) if tokens and len(tokens) == len(found) else None

    async def _open(self, request: OpenRequest) -> Opened:
        """At the first server that takes it.

        Raises:
            Overloaded, SessionLost: what the last one said.
        """
        up = [name for name in self._members if self._available(name)]
        # If none is up, each one waits with patience for itself; the first that is back takes it.
        names = up or list(self._members)
        occupancies = {name: self._replicas[name].occupancy() for name in names}
        last: OutriderError = SessionLost("no target server is left")
        for name in rank(placement_key(request), occupancies):
            replica = self._replicas[name]
            self._homes[request.session_id] = replica
            try:
                return await replica.open(request)
            except BaseException as error:
                self._homes.pop(request.session_id, None)
                if not isinstance(error, Overloaded | SessionLost):
                    raise
                last = error
        raise last

    def _available(self, name: str) -> bool:
        return name in self._members and self._replicas[name].available

    def _spare(self, name: str) -> bool:
        """Whether another server could go on with the sessions of this one."""
        return any(self._available(other) for other in self._replicas if other != name)

    async def _gather(self) -> dict[str, OutriderError]:
        """Take in the servers that answer; what the others said, or that they said nothing.

        Raises:
            ConfigError: two of them serve different models.
        """
        tasks = {
            name: asyncio.create_task(replica.describe())
            for name, replica in self._replicas.items()
        }
        try:
            waiting: set[asyncio.Task[TargetInfo]] = set(tasks.values())
            answered, grace_s = False, None
            while waiting:
                done, waiting = await asyncio.wait(
                    waiting, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED
                )
                answered |= any(task.exception() is None for task in done)
                if not done:
                    break
                grace_s = _GRACE_S if answered else None
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.wait(tasks.values())
        errors: dict[str, OutriderError] = {}
        for name, task in tasks.items():
            error = TargetFailed("it did not answer") if task.cancelled() else task.exception()
            if error is None:
                self._admit(name, task.result())
            elif isinstance(error, OutriderError):
                errors[name] = error
            else:
                raise error
        return errors

    def _admit(self, name: str, info: TargetInfo) -> None:
        """Take the server in.

        Raises:
            ConfigError: it serves another model than the others, or offers less.
        """
        known = dict(self._members)
        if self._info is not None:
            known.setdefault("the others", self._info)
        for other, before in known.items():
            if _identity(before) != _identity(info):
                raise ConfigError(
                    f"engine.target names servers of different models: {other} serves "
                    f"{before.model_id} with hash {before.model_hash}, and {name} serves "
                    f"{info.model_id} with hash {info.model_hash}; name servers of one model, "
                    "converted alike"
                )
        if self._info is not None and _offers_less(info, self._info):
            raise ConfigError(
                f"the target server at {name} takes {info.context_length} tokens and drafts of "
                f"{info.capabilities.max_draft_tokens}, less than the others; start it with the "
                "same settings"
            )
        self._members[name] = info
        self._strangers.pop(name, None)

    def _leave_out(self, name: str, reason: str) -> None:
        if self._strangers.get(name) != reason:
            self._strangers[name] = reason
            _log.warning("target_left_out", target=name, reason=reason)

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(_PROBE_S)
            away = [name for name in self._replicas if not self._available(name)]
            await asyncio.gather(*(self._ask(name) for name in away))

    async def _ask(self, name: str) -> None:
        """Take a server in, or in again, if it is there."""
        replica = self._replicas[name]
        try:
            if not await replica.probe():
                return
            self._admit(name, await replica.describe())
        except OutriderError as error:
            self._members.pop(name, None)
            self._leave_out(name, str(error))
        else:
            _log.info("target_taken_in", target=name)


def _identity(info: TargetInfo) -> tuple[object, ...]:
    return info.model_hash, info.vocab_size, info.vocab_fingerprint


def _offers_less(info: TargetInfo, common: TargetInfo) -> bool:
    offered, wanted = info.capabilities, common.capabilities
    return (
        info.context_length < common.context_length
        or offered.max_draft_tokens < wanted.max_draft_tokens
        or not set(info.drafters) >= set(common.drafters)
        or offered.batch_invariant < wanted.batch_invariant
        or offered.sampling < wanted.sampling
        or offered.seeds < wanted.seeds
    )


def _common(infos: Sequence[TargetInfo]) -> TargetInfo:
    """What holds of every one of these equal models."""
    first = infos[0]
    capabilities = [info.capabilities for info in infos]
    return replace(
        first,
        context_length=min(info.context_length for info in infos),
        drafters=tuple(
            name for name in first.drafters if all(name in info.drafters for info in infos)
        ),
        capabilities=replace(
            first.capabilities,
            sampling=all(each.sampling for each in capabilities),
            seeds=all(each.seeds for each in capabilities),
            batch_invariant=all(each.batch_invariant for each in capabilities),
            max_draft_tokens=min(each.max_draft_tokens for each in capabilities),
        ),
    )
