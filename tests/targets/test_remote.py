from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import grpc
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
from outrider.targets.base import NearDraft
from outrider.targets.remote import RemoteTarget
from outrider.types import NO_DRAFT, Draft, SamplingParams
from tests.certificates import write_certificate
from tests.proxy import Proxy
from tests.targets.remote_serving import (
    DESCRIBED,
    GREEDY,
    SEEDED,
    RealServer,
    Scripted,
    request,
    scripted,
    serving,
)

pytestmark = pytest.mark.anyio

LIMIT_S = 20.0
PEERS = PeerSettings(patience_s=3.0)
HASTY = PeerSettings(patience_s=0.5)


@pytest.fixture
def table(write_table):
    return write_table(vocab_size=5, order=2, seed=3)


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    """However a test ends, no task of ours goes on behind it."""
    before = asyncio.all_tasks()
    async with asyncio.timeout(LIMIT_S):
        yield
    left = [t for t in asyncio.all_tasks() - before if "outrider" in repr(t.get_coro())]
    assert not left


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
    async with serving(table, max_sessions=64) as server, remote(server.address) as target:
        took: list[float] = []
        loop = asyncio.get_running_loop()

        async def session(name: str) -> None:
            for turn in range(4):
                session_id = f"{name}-{turn}"
                await target.open(request(session_id))
                for round_id in range(4):
                    began = loop.time()
                    await round_of(target, round_id, session_id=session_id)
                    took.append(loop.time() - began)
                await target.release(session_id)

        await asyncio.gather(*(session(str(index)) for index in range(64)))
        took.sort()
        assert len(took) == 64 * 16
        assert took[len(took) * 99 // 100] < 10 * took[len(took) // 2]
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


NONSENSE = {
    "another position": {"position": 3},
    "an earlier position with a gap": {"position": 0, "token_ids": []},
    "no tokens": {"token_ids": []},
    "more than was asked for": {"token_ids": [1, 2, 3, 4]},
    "more accepted than drafted": {"token_ids": [1, 2], "accepted": 1},
    "more drafted than was sent": {"drafted": 9, "accepted": 0},
    "no such token": {"token_ids": [5]},
    "an unknown end": {"finish_reason": 7},
    "the budget's end before it": {"finish_reason": pb.LENGTH},
    "beyond the budget": {"position": 2, "token_ids": [1, 1]},
    "log probabilities that nobody asked for": {"logprobs": [pb.TokenLogprobs(token_id=1)]},
}


@pytest.mark.parametrize("fields", NONSENSE.values(), ids=NONSENSE)
async def test_an_answer_that_makes_no_sense_fails_its_session_alone(fields) -> None:
    def answers(action: pb.Action, script: Scripted) -> list[pb.Event]:
        bad = action.session == script.actions[0].session
        return [verified(action, **(fields if bad else {}))]

    async with scripted(behave(answers)) as (address, script), remote(address) as target:
        sampling = replace(GREEDY, max_tokens=3)
        await target.open(request("bad", sampling))
        await target.open(request("good", sampling))
        position = 2 if fields.get("position") == 2 else 0
        with pytest.raises(TargetFailed, match="the target server"):
            await round_of(target, position=position, draft=Draft((1, 2)), session_id="bad")
        assert len(await round_of(target, session_id="good")) == 1
        assert script.kinds().count("cancel") == 1
        assert script.streams == 1


@pytest.mark.parametrize(
    "logprobs",
    [
        [],
        [pb.TokenLogprobs(token_id=2, logprob=-1.0)],
        [pb.TokenLogprobs(token_id=1, logprob=float("nan"))],
        [pb.TokenLogprobs(token_id=1, top_token_ids=[9], top_logprobs=[-1.0])],
    ],
    ids=["none", "of another token", "not a number", "of no token"],
)
async def test_log_probabilities_that_make_no_sense_fail_the_session(logprobs) -> None:
    async with (
        scripted(behave(lambda action, _: [verified(action, logprobs=logprobs)])) as (address, _),
        remote(address) as target,
    ):
        await target.open(request(sampling=replace(GREEDY, logprobs=1)))
        with pytest.raises(TargetFailed, match="log probabilities"):
            await round_of(target)


async def test_answers_that_come_twice_are_taken_once() -> None:
    def twice(action: pb.Action, _) -> list[pb.Event]:
        answers = [verified(action, position=at) for at in range(3)]
        return [answers[0], answers[0], answers[1], answers[0], answers[1], answers[2]]

    async with scripted(behave(twice)) as (address, _), remote(address) as target:
        await target.open(request())
        assert [answer.position for answer in await round_of(target, run=2)] == [0, 1, 2]


async def test_events_of_nobody_and_of_other_rounds_are_ignored() -> None:
    def strays(action: pb.Action, _) -> list[pb.Event]:
        other = pb.Event(session=action.session + 1, ended=pb.Ended(round_id=1))
        failed = pb.Failed(reason=pb.TARGET_FAILED, round_id=99)
        return [
            other,
            pb.Event(session=action.session),
            pb.Event(session=action.session, opened=pb.Opened(epoch=77)),
            pb.Event(session=action.session, ended=pb.Ended(round_id=99)),
            pb.Event(session=action.session, failed=failed),
            verified(action, round_id=98, position=4),
            verified(action),
        ]

    async with scripted(behave(strays)) as (address, _), remote(address) as target:
        await target.open(request())
        assert len(await round_of(target)) == 1


async def test_a_message_that_is_none_breaks_the_stream_and_the_round_is_asked_again() -> None:
    def garbage_first(action: pb.Action, script: Scripted) -> list[pb.Event] | bytes:
        return b"\xff\xff\xff" if script.streams == 1 else [verified(action)]

    async with scripted(behave(garbage_first)) as (address, script), remote(address) as target:
        await target.open(request())
        assert len(await round_of(target)) == 1
        assert script.streams == 2


async def test_a_server_that_sends_nothing_but_garbage_fails_within_patience() -> None:
    async with (
        scripted(behave(lambda *_: b"\xff\xff\xff")) as (address, script),
        remote(address, HASTY) as target,
    ):
        await target.open(request())
        with pytest.raises(TargetFailed, match="no message"):
            await round_of(target)
        assert 2 < script.streams < 12


async def test_what_was_answered_before_a_break_is_not_doubled() -> None:
    """The server repeats from the first, and goes on."""

    def broken_in_the_middle(action: pb.Action, script: Scripted) -> list[pb.Event] | None:
        if script.streams == 1 and action.advance.round_id == 2:
            return None
        count = 2 if script.streams == 1 else 4
        return [verified(action, position=action.advance.position + at) for at in range(count)]

    async with (
        scripted(behave(broken_in_the_middle)) as (address, script),
        remote(address) as target,
    ):
        await target.open(request())
        await target.open(request("breaks"))
        running = target.advance("s", 1, 0, NO_DRAFT, 3)
        found = [await anext(running), await anext(running)]
        await round_of(target, 2, session_id="breaks")
        found += [answer async for answer in running]
        assert [answer.position for answer in found] == [0, 1, 2, 3]
        assert script.streams == 2


async def test_a_silent_server_holds_nobody_who_leaves(monkeypatch) -> None:
    monkeypatch.setattr("outrider.targets.remote._RELEASE_S", 0.1)

    async def opens(action: pb.Action, script: Scripted) -> list[pb.Event]:
        if action.WhichOneof("kind") == "open":
            return [pb.Event(session=action.session, opened=pb.Opened())]
        return []

    async with scripted(opens) as (address, script), remote(address) as target:
        await target.open(request())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await round_of(target)
        async with asyncio.timeout(1):
            await target.release("s")
        assert script.kinds() == ["open", "advance", "cancel", "release"]


@pytest.mark.parametrize("opened", [pb.Opened(epoch=3), pb.Opened(cached_tokens=2)])
async def test_an_opening_that_makes_no_sense_fails(opened: pb.Opened) -> None:
    async def opens(action: pb.Action, script: Scripted) -> list[pb.Event]:
        return [pb.Event(session=action.session, opened=opened)]

    async with scripted(opens) as (address, _), remote(address) as target:
        with pytest.raises(TargetFailed, match="opened epoch"):
            await target.open(request())


async def test_a_server_that_refuses_the_stream_fails_openings_at_once() -> None:
    class Full(Scripted):
        async def Decode(self, requests, context):  # noqa: N802 # gRPC's name
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams")

    async with scripted(silence, make=Full) as (address, _), remote(address) as target:
        with pytest.raises(Overloaded, match="too many streams"):
            await target.open(request())


async def test_drafts_beside_the_target_may_fill_any_answer() -> None:
    def near(action: pb.Action, _) -> list[pb.Event]:
        fields = {"drafted": 2, "accepted": 2, "token_ids": [1, 1, 1]}
        return [verified(action, **fields), verified(action, position=3, **fields)]

    async with scripted(behave(near)) as (address, _), remote(address) as target:
        await target.open(request(near_draft=NearDraft("ngram", 4)))
        assert [len(answer.token_ids) for answer in await round_of(target, run=5)] == [3, 3]


async def test_what_is_ready_at_once_travels_in_one_message() -> None:
    async with (
        scripted(behave(lambda action, _: [verified(action)])) as (address, script),
        remote(address) as target,
    ):
        names = [f"s{index}" for index in range(16)]
        await asyncio.gather(*(target.open(request(name)) for name in names))
        before = script.messages
        await asyncio.gather(*(round_of(target, session_id=name) for name in names))
        assert script.messages - before <= 3


async def test_a_round_costs_a_few_bytes_a_token_whatever_the_context() -> None:
    def two(action: pb.Action, _) -> list[pb.Event]:
        position = action.advance.position
        return [verified(action), verified(action, position=position + 1)]

    async with (
        scripted(behave(two)) as (address, script),
        remote(address) as target,
    ):
        await target.open(request(sampling=SamplingParams(temperature=0.0, max_tokens=2**31 - 1)))
        for count in (0, 1, 16):
            await round_of(target, 2**32 - 20 + count, 2**31 - 9, Draft((2**17,) * count), 1)
            asked = script.actions[-1]
            assert asked.WhichOneof("kind") == "advance"
            assert pb.DecodeRequest(actions=[asked]).ByteSize() <= 64 + 8 * count


async def test_many_sessions_share_one_stream_and_leave_nothing(table) -> None:
    expected = await undisturbed(table, GREEDY)
    async with serving(table, max_sessions=32) as server, remote(server.address) as target:
        outputs = await asyncio.gather(
            *(decode(target, session_id=f"s{index}") for index in range(32))
        )
        assert set(outputs) == {expected}
        assert len(server.service._streams) == 1
        assert (len(server.sessions), target._sessions.by_id, target._sessions.releasing) == (
            0,
            {},
            {},
        )


async def test_real_servers_are_of_use_here(table) -> None:
    """The harness kills what it says it kills."""
    server = RealServer(table)
    await server.start()
    await server.kill()
    async with remote(server.address, HASTY) as target:
        with pytest.raises(TargetFailed):
            await target.describe()


async def test_tls_and_the_token_go_together(table, tmp_path) -> None:
    cert_file, key_file = write_certificate(tmp_path)
    there = PeerSettings(token=SecretStr("t"), cert_file=cert_file, key_file=key_file)
    here = PeerSettings(token=SecretStr("t"), ca_file=cert_file, patience_s=0.5)
    async with serving(table, peers=there) as server:
        assert server.address.secure
        async with remote(server.address, here) as target:
            assert await decode(target) == await undisturbed(table, GREEDY)
        async with remote(server.address, HASTY) as target:  # which trusts nobody it should
            with pytest.raises(TargetFailed, match="cannot be reached"):
                await target.describe()
        plain = Address(server.address.host, server.address.port)
        async with remote(plain, here) as target:
            with pytest.raises(TargetFailed, match=r"grpcs:// if it speaks TLS"):
                await target.describe()
