from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from outrider.config import PeerSettings
from outrider.errors import ConfigError, Overloaded, SessionLost, TargetFailed
from outrider.rpc import target_inference_pb2 as pb
from outrider.rpc.channel import Address
from outrider.targets.replicas import ReplicatedTarget
from outrider.types import NO_DRAFT
from tests.proxy import Proxy
from tests.targets.remote_asking import BOTH, decode, once, round_of, silence, undisturbed
from tests.targets.remote_serving import (
    DESCRIBED,
    GREEDY,
    RealServer,
    request,
    scripted,
    serving,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_is_left")]

PEERS = PeerSettings(patience_s=5.0)
HASTY = PeerSettings(patience_s=0.5)


@asynccontextmanager
async def replicas(*addresses: Address, peers: PeerSettings = PEERS):
    target = ReplicatedTarget(addresses, peers)
    try:
        yield target
    finally:
        await target.close()
        assert target.occupancy()[0] == 0


@asynccontextmanager
async def two(file, peers: PeerSettings = PEERS, **options):
    """Two servers and the target over them."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(file, **options)) for _ in range(2)]
        target = await stack.enter_async_context(
            replicas(*(server.address for server in servers), peers=peers)
        )
        await target.describe()
        yield target, servers


def home(servers: list[RealServer]) -> tuple[RealServer, RealServer]:
    """The server that has a session, and the other one."""
    first, second = servers
    return (first, second) if first.table.occupancy()[0] else (second, first)


async def until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 # nobody tells
            await asyncio.sleep(0.02)


@BOTH
async def test_a_session_whose_server_is_killed_goes_on_at_the_other(table, sampling) -> None:
    expected = await undisturbed(table, sampling)
    async with two(table, PeerSettings(patience_s=15.0), step_s=0.003) as (target, servers):
        began = asyncio.get_running_loop().time()
        left: list[RealServer] = []

        async def kill() -> None:
            busy, idle = home(servers)
            left.append(idle)
            await busy.kill()

        output = await decode(target, sampling, run=30, on_answer=once(10, kill))
        assert output == expected
        # Nobody waits for the one that is gone while there is another.
        assert asyncio.get_running_loop().time() - began < 5
        assert left[0].table.occupancy()[0] == 0


async def test_a_stalled_connection_moves_its_session_to_the_other_server(table) -> None:
    expected = await undisturbed(table, GREEDY)
    async with (
        serving(table, step_s=0.003) as first,
        serving(table, step_s=0.003) as second,
        Proxy(first.address.port) as one,
        Proxy(second.address.port) as other,
        replicas(Address("127.0.0.1", one.port), Address("127.0.0.1", other.port)) as target,
    ):

        def stall() -> None:
            (one if first.table.occupancy()[0] else other).stall()

        assert await decode(target, run=30, on_answer=once(10, stall)) == expected


@BOTH
async def test_when_all_are_killed_and_one_comes_back_the_session_goes_on(table, sampling) -> None:
    expected = await undisturbed(table, sampling)
    async with two(table, step_s=0.003) as (target, servers):

        async def kill_both() -> None:
            busy, idle = home(servers)
            await busy.kill()
            await idle.kill()
            asyncio.get_running_loop().call_later(0.7, lambda: tasks.append(restart(idle)))

        def restart(server: RealServer) -> asyncio.Task[None]:
            return asyncio.create_task(server.start())

        tasks: list[asyncio.Task[None]] = []
        assert await decode(target, sampling, run=30, on_answer=once(10, kill_both)) == expected
        await asyncio.gather(*tasks)


async def test_when_all_stay_away_a_session_fails_within_patience(table) -> None:
    async with two(table, HASTY, step_s=0.01) as (target, servers):

        async def kill_both() -> None:
            await asyncio.gather(*(server.kill() for server in servers))

        with pytest.raises(TargetFailed):
            await decode(target, run=30, on_answer=once(5, kill_both))


async def test_a_reset_connection_moves_no_session(table) -> None:
    async with (
        serving(table) as first,
        Proxy(first.address.port) as proxy,
        serving(table) as second,
        replicas(Address("127.0.0.1", proxy.port), second.address) as target,
    ):
        await target.describe()
        await until(lambda: len(target._members) == 2)
        for index in range(4):
            await target.open(request(f"s{index}", prompt_ids=(index,)))
        before = first.table.occupancy()[0]
        assert before
        proxy.cut()
        await asyncio.gather(*(round_of(target, session_id=f"s{index}") for index in range(4)))
        assert first.table.occupancy()[0] == before


async def test_what_begins_alike_meets_and_load_is_bounded(table) -> None:
    async with two(table, max_sessions=16) as (target, servers):
        await target.open(request("a", prompt_ids=(1, 2)))
        await target.open(request("b", prompt_ids=(1, 2)))
        assert sorted(server.table.occupancy()[0] for server in servers) == [0, 2]
        for index in range(14):
            await target.open(request(f"s{index}", prompt_ids=(1, 2)))
        assert sorted(server.table.occupancy()[0] for server in servers) == [6, 10]
        assert target.occupancy() == (16, 32)
        for name in ("a", "b", *(f"s{index}" for index in range(14))):
            await target.release(name)
        assert target._homes == {}


async def test_a_server_that_is_full_is_followed_by_the_next(table) -> None:
    async with two(table, max_sessions=1) as (target, servers):
        # Another gateway has the place, of which this one knows nothing.
        for server in servers:
            await server.table.open(request("foreign"))
            await target.open(request("mine"))
            await target.release("mine")
            await server.table.release("foreign")


async def test_when_all_are_full_a_new_session_is_refused_and_a_running_one_waits(table) -> None:
    async with two(table, max_sessions=1) as (target, _):
        await target.open(request("a"))
        await target.open(request("b"))
        with pytest.raises(Overloaded):
            await target.open(request("c"))
        reopening = asyncio.create_task(target.open(request("d", epoch=1)))
        await asyncio.sleep(0.2)
        assert not reopening.done()
        await target.release("a")
        await reopening


async def test_a_server_that_drains_gets_no_new_sessions_and_ends_its_own(table) -> None:
    async with two(table, step_s=0.01) as (target, servers):
        running = asyncio.create_task(decode(target, session_id="running", run=30))
        await until(lambda: any(server.table.occupancy()[0] for server in servers))
        draining, other = home(servers)
        await draining.drain()
        for index in range(4):
            await target.open(request(f"s{index}", prompt_ids=(index,)))
        assert other.table.occupancy()[0] == 4
        assert await running == await undisturbed(table, GREEDY)


async def test_a_server_that_is_away_at_the_start_is_taken_in_later(table) -> None:
    async with serving(table) as first, serving(table) as second:
        await second.kill()
        async with replicas(first.address, second.address, peers=HASTY) as target:
            with capture_logs() as logs:
                await target.describe()
            assert target.occupancy() == (0, 8)
            assert [entry["event"] for entry in logs] == ["target_left_out"]
            await second.start()
            await until(lambda: target.occupancy() == (0, 16))
            for index in range(8):
                await target.open(request(f"s{index}", prompt_ids=(1,)))
            assert second.table.occupancy()[0] > 0


async def test_a_server_that_comes_back_is_used_again(table) -> None:
    async with two(table) as (target, servers):
        await servers[0].kill()
        await target.open(request("a"))
        await servers[0].start()
        await until(lambda: all(target._available(name) for name in target._members))
        for index in range(6):
            await target.open(request(f"s{index}"))
        assert servers[0].table.occupancy()[0] > 0


async def test_one_has_to_answer_at_the_start() -> None:
    async with Proxy(1) as first, Proxy(1) as second:
        addresses = [Address("127.0.0.1", proxy.port) for proxy in (first, second)]
        async with replicas(*addresses, peers=HASTY) as target:
            with pytest.raises(TargetFailed, match="cannot be reached"):
                await target.describe()


async def test_servers_of_different_models_are_refused_with_both_named(table, write_table) -> None:
    other = write_table("other", vocab_size=5, order=2, seed=4)
    async with (
        serving(table) as first,
        serving(other) as second,
        replicas(first.address, second.address) as target,
    ):
        with pytest.raises(ConfigError, match="different models") as refused:
            await target.describe()
    assert str(first.address) in str(refused.value)
    assert str(second.address) in str(refused.value)


async def test_another_model_that_comes_later_is_left_out(table, write_table) -> None:
    other = write_table("other", vocab_size=5, order=2, seed=4)
    async with serving(table) as first, serving(other) as second:
        await second.kill()
        async with replicas(first.address, second.address, peers=HASTY) as target:
            await target.describe()
            await second.start()
            await until(lambda: "different models" in target._strangers[str(second.address)])
            assert target.occupancy() == (0, 8)
            await target.open(request())
            assert second.table.occupancy()[0] == 0


async def test_what_is_promised_holds_of_every_server() -> None:
    smaller = pb.DescribeResponse()
    smaller.CopyFrom(DESCRIBED)
    smaller.context_length, smaller.cache_tokens = 500, 700
    smaller.capabilities.max_draft_tokens = 4
    larger = pb.DescribeResponse()
    larger.CopyFrom(DESCRIBED)
    larger.cache_tokens = 300
    async with (
        scripted(silence, smaller) as (one, _),
        scripted(silence, larger) as (other, _),
        replicas(one, other) as target,
    ):
        info = await target.describe()
        assert (info.context_length, info.capabilities.max_draft_tokens) == (500, 4)
        assert target.cache_use().tokens == 1000


async def test_a_session_that_is_open_nowhere_is_lost(table) -> None:
    async with two(table) as (target, _):
        with pytest.raises(SessionLost):
            await round_of(target)
        await target.release("never opened")


async def test_opening_a_session_again_takes_it_from_where_it_was(table) -> None:
    async with two(table) as (target, servers):
        await target.open(request())
        await target.open(replace(request(), epoch=1, output_ids=(1, 2)))
        assert sum(server.table.occupancy()[0] for server in servers) == 1
        (answer,) = await round_of(target, 1, 2, NO_DRAFT)
        assert answer.position == 2
