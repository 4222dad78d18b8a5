"""What a server answers is not trusted."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import pytest
from pydantic import SecretStr

from outrider.config import PeerSettings
from outrider.errors import (
    Overloaded,
    TargetFailed,
)
from outrider.rpc import target_inference_pb2 as pb
from outrider.rpc.channel import Address
from outrider.targets.base import NearDraft
from outrider.types import NO_DRAFT, Draft, SamplingParams
from tests.certificates import write_certificate
from tests.targets.remote_asking import (
    HASTY,
    behave,
    decode,
    remote,
    round_of,
    silence,
    undisturbed,
    verified,
)
from tests.targets.remote_serving import (
    GREEDY,
    RealServer,
    Scripted,
    request,
    scripted,
    serving,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_is_left")]


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
