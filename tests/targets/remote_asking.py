"""Asking a remote target, undisturbed or not, and scripts of servers that answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest

from outrider.config import PeerSettings
from outrider.errors import (
    SessionLost,
)
from outrider.rpc import target_inference_pb2 as pb
from outrider.rpc.channel import Address
from outrider.targets.remote import RemoteTarget
from outrider.types import NO_DRAFT, Draft
from tests.targets.remote_serving import (
    GREEDY,
    SEEDED,
    Scripted,
    request,
    serving,
)

PEERS = PeerSettings(patience_s=3.0)
HASTY = PeerSettings(patience_s=0.5)


@asynccontextmanager
async def remote(
    address: Address, peers: PeerSettings = PEERS, **options
) -> AsyncIterator[RemoteTarget]:
    target = RemoteTarget(address, peers, **options)
    try:
        yield target
    finally:
        await target.close()
        assert target.occupancy()[0] == 0


async def round_of(target, round_id=1, position=0, draft=NO_DRAFT, run=0, session_id="s"):
    async with aclosing(target.advance(session_id, round_id, position, draft, run)) as answers:
        return [answer async for answer in answers]


async def decode(target, sampling=GREEDY, *, session_id="s", lookahead=3, run=2, on_answer=None):
    """A whole output, as the pipeline gets it: drafts, and reopening what was lost."""
    opening = request(session_id, sampling)
    await target.open(opening)
    output: list[int] = []
    rounds = reopened = 0
    finished = None
    while finished is None:
        rounds += 1
        draft = Draft(tuple((output[-1:] or [0]) * min(lookahead, 39 - len(output))))
        try:
            async with aclosing(
                target.advance(session_id, rounds, len(output), draft, run)
            ) as answers:
                async for answer in answers:
                    assert answer.position == len(output)
                    output.extend(answer.token_ids)
                    finished = answer.finish_reason
                    if on_answer is not None:
                        await on_answer(len(output))
        except SessionLost:
            reopened += 1
            assert reopened < 4
            opening = replace(opening, epoch=opening.epoch + 1, output_ids=tuple(output))
            await target.release(session_id)
            await target.open(opening)
    await target.release(session_id)
    return tuple(output)


async def undisturbed(table, sampling):
    async with serving(table) as server:
        return await decode(server.table, sampling)


def once(at: int, what):
    """Calls `what` when the output has first come so far."""
    done = False

    async def on_answer(length: int) -> None:
        nonlocal done
        if length >= at and not done:
            done = True
            found = what()
            if found is not None:
                await found

    return on_answer


BOTH = pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])


async def silence(action: pb.Action, script: Scripted) -> list[pb.Event]:
    return []


def verified(action: pb.Action, **fields) -> pb.Event:
    asked = action.advance
    given = {"round_id": asked.round_id, "position": asked.position, "token_ids": [1]}
    return pb.Event(session=action.session, verified=pb.Verified(**(given | fields)))


def behave(on_advance):
    """A script that opens and releases whatever it is asked to, and answers rounds as told."""

    async def answer(action: pb.Action, script: Scripted) -> list[pb.Event] | bytes | None:
        kind = action.WhichOneof("kind")
        if kind == "open":
            opened = pb.Opened(epoch=action.open.epoch)
            return [pb.Event(session=action.session, opened=opened)]
        if kind == "release":
            return [pb.Event(session=action.session, released=pb.Released())]
        return on_advance(action, script) if kind == "advance" else []

    return answer
