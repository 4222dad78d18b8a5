from __future__ import annotations

import asyncio

import pytest

from outrider.config import SpeculationSettings
from outrider.models import TableModel
from outrider.rpc import target_inference_pb2 as pb
from outrider.servers.decode_stream import DecodeStream
from outrider.servers.near import NearDraftingTarget
from outrider.servers.outbox import Outbox
from outrider.servers.target_checks import Checks
from outrider.servers.target_metrics import TargetMetrics
from outrider.servers.target_sessions import Sessions
from outrider.targets import TableTarget

from .target_serving import advance, opening

pytestmark = pytest.mark.anyio

EVENT = pb.Event(session=1, verified=pb.Verified(token_ids=[1]))


def large(size: int) -> pb.Event:
    return pb.Event(session=1, failed=pb.Failed(message="x" * size))


async def test_what_is_ready_at_once_is_taken_at_once_and_in_order() -> None:
    outbox = Outbox(1 << 20)
    events = [pb.Event(session=number) for number in range(5)]
    for event in events:
        await outbox.put(event)
    assert await outbox.take() == events


async def test_a_message_holds_no_more_than_its_limit_allows() -> None:
    outbox = Outbox(65_536)
    for _ in range(5):
        outbox.push(large(15_000))
    assert [len(await outbox.take()) for _ in range(3)] == [2, 2, 1]
    outbox.push(large(60_000))
    assert len(await outbox.take()) == 1


async def test_whoever_adds_to_a_full_one_waits_until_the_peer_has_read() -> None:
    outbox = Outbox(1 << 20)
    while outbox._room.is_set():
        outbox.push(large(1000))
    waiting = asyncio.create_task(outbox.put(EVENT))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await outbox.take()
    await asyncio.wait_for(waiting, 1)


async def test_once_closed_it_gives_what_it_has_and_then_nothing() -> None:
    outbox = Outbox(1 << 20)
    outbox.push(EVENT)
    outbox.close()
    outbox.push(EVENT)
    await outbox.put(EVENT)
    assert await outbox.take() == [EVENT]
    assert await outbox.take() == []


async def test_a_gateway_that_does_not_read_has_its_rounds_wait(write_table) -> None:
    table = TableTarget(TableModel.load(write_table(context_length=200_000)), model_id="t")
    target = NearDraftingTarget(table, {}, SpeculationSettings())
    checks = Checks(await target.describe(), None, 1 << 20)
    sessions = Sessions(target, checks, TargetMetrics(target), lease_s=0)
    stream = DecodeStream(sessions, 1 << 20)
    long = pb.Sampling(top_p=1.0, repetition_penalty=1.0, max_tokens=100_000)
    numbers = range(1, 5)

    async def requests():
        yield pb.DecodeRequest(actions=[opening(number, sampling=long) for number in numbers])
        yield pb.DecodeRequest(actions=[advance(number, run=99_000) for number in numbers])
        await asyncio.Event().wait()

    async def write(_: pb.DecodeResponse) -> None:
        await asyncio.Event().wait()

    running = asyncio.create_task(stream.run(requests(), write))
    steps = -1.0
    async with asyncio.timeout(10):
        while steps < (now := sessions.metrics.output_tokens._value.get()) or now < 100:
            steps = now
            await asyncio.sleep(0.2)
    assert steps < 10_000  # of nearly 400,000
    running.cancel()
    await asyncio.wait([running])
    await asyncio.wait_for(sessions.empty(), 5)
    assert table.occupancy()[0] == 0
