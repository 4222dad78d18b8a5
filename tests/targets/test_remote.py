from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from dataclasses import replace

import pytest
from pydantic import SecretStr

from outrider.config import PeerSettings
from outrider.errors import (
    ConfigError,
    ContextLengthExceeded,
    Overloaded,
    RequestError,
    SessionLost,
    StaleRound,
    TargetFailed,
)
from outrider.rpc import target_inference_pb2 as pb
from outrider.rpc.channel import Address
from outrider.types import NO_DRAFT, Draft, SamplingParams
from tests.proxy import Proxy
from tests.targets.remote_asking import (
    BOTH,
    HASTY,
    decode,
    once,
    remote,
    round_of,
    silence,
    undisturbed,
)
from tests.targets.remote_serving import (
    DESCRIBED,
    GREEDY,
    request,
    scripted,
    serving,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_is_left")]


@BOTH
async def test_a_session_at_a_server_says_what_it_says_here(table, sampling) -> None:
    async with serving(table) as server, remote(server.address) as target:
        assert await decode(target, sampling) == await undisturbed(table, sampling)
        assert len(server.sessions) == 0


async def test_it_describes_the_target_of_the_server(table) -> None:
    async with serving(table) as server, remote(server.address) as target:
        info, there = await target.describe(), await server.table.describe()
        assert info == replace(there, capabilities=replace(there.capabilities, ratios=False))
        assert target.occupancy() == (0, 8)
        assert target.cache_use() is None


async def test_the_memory_that_a_server_names_bounds_admission() -> None:
    described = pb.DescribeResponse()
    described.CopyFrom(DESCRIBED)
    described.cache_tokens = 500
    async with scripted(silence, described) as (address, _), remote(address) as target:
        await target.describe()
        assert target.cache_use().tokens == 500


@BOTH
async def test_a_reset_connection_in_the_middle_changes_nothing(table, sampling) -> None:
    expected = await undisturbed(table, sampling)
    async with (
        serving(table, step_s=0.003) as server,
        Proxy(server.address.port) as proxy,
        remote(Address("127.0.0.1", proxy.port)) as target,
    ):
        output = await decode(target, sampling, run=30, on_answer=once(10, proxy.cut))
        assert output == expected
        assert proxy.connections == 2
        assert len(server.sessions) == 0


@BOTH
async def test_a_server_that_restarts_on_its_port_goes_on_where_the_old_one_was(
    table, sampling
) -> None:
    expected = await undisturbed(table, sampling)
    async with serving(table, step_s=0.003) as server, remote(server.address) as target:

        async def restart() -> None:
            await server.kill()
            await asyncio.sleep(0.1)
            await server.start()

        assert await decode(target, sampling, run=30, on_answer=once(10, restart)) == expected
        assert len(server.sessions) == 0


async def test_a_server_that_stays_away_fails_its_sessions_with_address_and_remedy(table) -> None:
    async with serving(table, step_s=0.01) as server, remote(server.address, HASTY) as target:
        with pytest.raises(TargetFailed, match=rf"{server.address}.*see that it runs"):
            await decode(target, run=30, on_answer=once(5, server.kill))
        assert target.occupancy()[0] == 0
        with pytest.raises(TargetFailed, match="cannot be used"):
            await target.open(request("later"))
        await server.start()
        assert await decode(target) == await undisturbed(table, GREEDY)


@BOTH
async def test_delay_on_the_way_changes_nothing(table, sampling) -> None:
    expected = await undisturbed(table, sampling)
    async with (
        serving(table) as server,
        Proxy(server.address.port, delay_s=0.005) as proxy,
        remote(Address("127.0.0.1", proxy.port)) as target,
    ):
        assert await decode(target, sampling, run=10) == expected


async def test_a_connection_that_is_open_on_this_side_alone_is_noticed(table) -> None:
    expected = await undisturbed(table, GREEDY)
    async with (
        serving(table, step_s=0.003) as server,
        Proxy(server.address.port) as proxy,
        remote(Address("127.0.0.1", proxy.port), PeerSettings(patience_s=10.0)) as target,
    ):
        loop = asyncio.get_running_loop()

        def stall() -> None:
            proxy.stall()
            # Whoever connects anew gets through, as behind a router that lost its state.
            loop.call_later(7.0, proxy.resume)

        began = loop.time()
        assert await decode(target, run=30, on_answer=once(10, stall)) == expected
        assert loop.time() - began < 15
        assert proxy.connections >= 2


async def test_closing_a_round_stops_it_at_the_server(table) -> None:
    async with serving(table, step_s=0.05) as server, remote(server.address) as target:
        await target.open(request())
        async with aclosing(target.advance("s", 1, 0, NO_DRAFT, 39)) as answers:
            await anext(answers)
        await asyncio.sleep(0.2)
        assert not any(held.busy for held in server.sessions._held.values())
        assert len(await round_of(target, 2, 1)) == 1


async def test_release_is_sent_though_whoever_asks_is_cancelled(table) -> None:
    async with serving(table) as server, remote(server.address) as target:
        await target.open(request())
        task = asyncio.create_task(target.release("s"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        async with asyncio.timeout(2):
            await server.sessions.empty()
        assert target._sessions.releasing == {}


async def test_an_opening_that_is_cancelled_is_released(table) -> None:
    async with serving(table) as server, remote(server.address) as target:
        await target.describe()
        task = asyncio.create_task(target.open(request()))
        async with asyncio.timeout(2):
            while not target.occupancy()[0]:  # noqa: ASYNC110 # it tells nobody
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await target.open(request("next"))
        await target.release("next")
        async with asyncio.timeout(2):
            await server.sessions.empty()


async def test_sessions_released_while_the_connection_is_cut_are_free_afterwards(table) -> None:
    async with (
        serving(table) as server,
        Proxy(server.address.port) as proxy,
        remote(Address("127.0.0.1", proxy.port)) as target,
    ):
        await target.open(request("a"))
        await target.open(request("b"))
        proxy.cut()
        async with asyncio.timeout(2):
            while target._link.up:  # noqa: ASYNC110 # it tells nobody
                await asyncio.sleep(0)
        await target.release("a")
        await round_of(target, session_id="b")
        await target.release("b")
        async with asyncio.timeout(2):
            await server.sessions.empty()


async def test_the_same_round_asked_again_repeats_its_answers(table) -> None:
    async with serving(table) as server, remote(server.address) as target:
        await target.open(request())
        first = await round_of(target, 1, 0, Draft((1, 2)), 3)
        assert await round_of(target, 1, 0, NO_DRAFT, 3) == first


async def test_a_round_abandoned_and_asked_again_begins_with_its_first_answer(table) -> None:
    async with serving(table, step_s=0.002) as server, remote(server.address) as target:
        await target.open(request())
        async with aclosing(target.advance("s", 1, 0, NO_DRAFT, 20)) as answers:
            first = [await anext(answers), await anext(answers)]
        again = await round_of(target, 1, 0, NO_DRAFT, 20)
        assert again[:2] == first
        assert [answer.position for answer in again] == list(range(21))


async def test_an_older_round_is_stale_and_a_later_one_ends_the_running_one(table) -> None:
    async with serving(table, step_s=0.01) as server, remote(server.address) as target:
        await target.open(request())
        running = target.advance("s", 5, 0, NO_DRAFT, 20)
        await anext(running)
        with pytest.raises(StaleRound):
            await round_of(target, 4, 1)
        await anext(running)  # as if nothing had been asked
        assert len(await round_of(target, 6, 1)) == 1
        with pytest.raises(StaleRound):
            async for _ in running:
                pass


async def test_a_session_that_is_not_open_is_lost(table) -> None:
    async with serving(table) as server, remote(server.address) as target:
        with pytest.raises(SessionLost):
            await round_of(target)
        await target.release("never opened")


async def test_a_full_server_is_overloaded_and_has_room_again_after_a_release(table) -> None:
    async with serving(table, max_sessions=1) as server, remote(server.address) as target:
        await target.open(request("a"))
        with pytest.raises(Overloaded):
            await target.open(request("b"))
        await target.release("a")
        await target.open(request("b"))
        assert target.occupancy() == (1, 1)


async def test_what_never_fits_or_is_invalid_is_told_as_the_server_told_it(table) -> None:
    async with serving(table) as server, remote(server.address) as target:
        long = SamplingParams(temperature=0.0, max_tokens=10_000)
        with pytest.raises(ContextLengthExceeded, match="together 10001"):
            await target.open(request(sampling=long))
        with pytest.raises(RequestError, match="token id 99"):
            await target.open(request(prompt_ids=(99,)))


async def test_a_number_that_no_message_holds_harms_no_other_session(table) -> None:
    async with serving(table) as server, remote(server.address) as target:
        await target.open(request("other"))
        with pytest.raises(RequestError, match="parameter"):
            await target.open(request(sampling=replace(GREEDY, max_tokens=2**40)))
        assert target.occupancy()[0] == 1
        assert len(await round_of(target, session_id="other")) == 1


async def test_more_than_any_vocabulary_holds_is_all_of_it(table) -> None:
    async with serving(table) as server, remote(server.address) as target:
        await target.open(request(sampling=replace(GREEDY, top_k=2**40)))
        assert len(await round_of(target)) == 1


async def test_no_session_holds_up_another(table) -> None:
    """While one round waits, each other session is answered a few times at most, on any machine."""
    async with serving(table, max_sessions=64) as server, remote(server.address) as target:
        overtaken: list[int] = []
        answered = itertools.count()

        async def session(name: str) -> None:
            for turn in range(4):
                session_id = f"{name}-{turn}"
                await target.open(request(session_id))
                for round_id in range(4):
                    asked = next(answered)
                    await round_of(target, round_id, session_id=session_id)
                    overtaken.append(next(answered) - asked)
                await target.release(session_id)

        await asyncio.gather(*(session(str(index)) for index in range(64)))
        assert len(overtaken) == 64 * 16
        assert max(overtaken) < 64 * 2 * 4  # every round counts when it is asked, and answered
        assert (len(server.sessions), target.occupancy()[0]) == (0, 0)


async def test_a_server_that_drains_is_followed_by_the_next_on_its_port(table) -> None:
    expected = await undisturbed(table, GREEDY)
    async with serving(table) as server, remote(server.address) as target:
        await target.describe()
        await server.drain()
        session = asyncio.create_task(decode(target))
        await asyncio.sleep(0.3)
        assert not target.available
        await server.kill()
        await server.start()
        assert await session == expected


async def test_a_server_that_drains_for_good_fails_new_sessions(table) -> None:
    async with serving(table) as server, remote(server.address, HASTY) as target:
        await target.describe()
        await server.drain()
        with pytest.raises(TargetFailed, match=r"takes no sessions.*start another"):
            await target.open(request())


async def test_a_server_that_is_not_there_is_named_at_the_start() -> None:
    async with Proxy(1) as gone, remote(Address("127.0.0.1", gone.port), HASTY) as target:
        with pytest.raises(TargetFailed, match=r"cannot be reached.*outrider serve target"):
            await target.describe()


async def test_another_version_of_the_protocol_is_refused_with_both_named() -> None:
    described = pb.DescribeResponse(protocol_version=2, model_id="new")
    async with scripted(silence, described) as (address, _), remote(address) as target:
        with pytest.raises(ConfigError, match=r"version 2 of the protocol.*version 1"):
            await target.describe()


async def test_a_server_that_says_nothing_of_itself_is_refused() -> None:
    described = pb.DescribeResponse(protocol_version=1)
    async with scripted(silence, described) as (address, _), remote(address) as target:
        with pytest.raises(TargetFailed, match="none of them can be missing"):
            await target.describe()


async def test_the_token_lets_us_in_and_a_wrong_one_is_told(table) -> None:
    right, wrong = (PeerSettings(token=SecretStr(token)) for token in ("right", "wrong"))
    async with serving(table, peers=right) as server:
        async with remote(server.address, right) as target:
            assert len(await decode(target)) == 40
        async with remote(server.address, wrong) as target:
            with pytest.raises(ConfigError, match=r"peers\.token"):
                await target.describe()


async def test_another_model_behind_the_address_ends_the_sessions(table, write_table) -> None:
    other = write_table("other", vocab_size=5, order=2, seed=4)
    async with serving(table, step_s=0.01) as server, remote(server.address) as target:

        async def replace_model() -> None:
            await server.kill()
            server._file = other
            await server.start()

        with pytest.raises(TargetFailed, match=r"serves table with hash .* now, and before"):
            await decode(target, run=30, on_answer=once(5, replace_model))
