"""A target server over real sockets, asked by a raw gRPC client."""

from __future__ import annotations

import math

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.rpc import target_inference_pb2 as pb
from outrider.targets import NearDraft, OpenRequest
from outrider.targets.wire import decode_info, encode_open
from outrider.types import SamplingParams

from .target_serving import (
    LONG,
    advance,
    cancel,
    counted,
    kinds,
    opening,
    reference,
    release,
    tokens,
    until,
)

pytestmark = pytest.mark.anyio


async def test_it_describes_its_target_and_what_it_holds(target_server) -> None:
    async with target_server(engine={"max_sessions": 3}) as server, server.stub() as stub:
        described = await stub.Describe(pb.DescribeRequest())
    info = decode_info(described)
    assert (info.vocab_size, info.context_length, info.protocol_version) == (5, 1024, 1)
    assert (described.max_sessions, described.HasField("cache_tokens")) == (3, False)
    assert info.drafters == ("ngram",)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_session_says_what_the_table_says(target_server, write_table, temperature) -> None:
    sampling = SamplingParams(temperature=temperature, max_tokens=20)
    wanted = await reference(write_table, sampling, 12)
    opened = encode_open(OpenRequest("s", 0, (0,), (), sampling, noise_key=7))
    async with target_server() as server, server.client() as client:
        await client.send(pb.Action(session=9, open=opened))
        assert (await client.event()).WhichOneof("kind") == "opened"
        right = await client.round(advance(9, draft=tuple(wanted[:4]), run=2))
        wrong = ((wanted[7] + 1) % 5, 0)
        more = await client.round(advance(9, round_id=2, position=7, draft=wrong, run=4))
    assert kinds(right) == ["verified"] * 3 + ["ended"]
    assert (right[0].verified.drafted, right[0].verified.accepted) == (4, 4)
    assert (more[0].verified.drafted, more[0].verified.accepted) == (2, 0)
    assert [event.verified.position for event in more[:-1]] == [7, 8, 9, 10, 11]
    assert tokens(right + more) == wanted


async def test_many_sessions_share_messages_and_none_gets_anothers_answers(target_server) -> None:
    async with target_server() as server, server.client() as client:
        await client.send(*(opening(number, prompt_ids=[number % 5]) for number in range(1, 17)))
        assert kinds([await client.event() for _ in range(16)]) == ["opened"] * 16
        before = client.messages
        await client.send(*(advance(number, run=3) for number in range(1, 17)))
        found: dict[int, list[pb.Event]] = {number: [] for number in range(1, 17)}
        for _ in range(16 * 5):
            event = await client.event()
            found[event.session].append(event)
    for number, events in found.items():
        assert kinds(events) == ["verified"] * 4 + ["ended"]
        assert tokens(events) == tokens(found[(number - 1) % 5 + 1])
    assert client.messages - before <= 20


async def test_a_drafter_beside_the_target_saves_steps_and_changes_nothing(
    target_server, write_table
) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=200)
    wanted = await reference(write_table, sampling, 150)
    near = NearDraft("ngram", 8)
    opened = encode_open(OpenRequest("s", 0, (0,), (), sampling, noise_key=7, near_draft=near))
    async with (
        target_server(speculation={"controller": "fixed"}) as server,
        server.client() as client,
    ):
        await client.send(pb.Action(session=9, open=opened))
        await client.event()
        events = await client.round(advance(9, run=149))
    assert tokens(events) == wanted
    assert len(events) < 75
    assert sum(event.verified.accepted for event in events) > 75


async def test_many_sessions_at_once_advance_side_by_side(target_server) -> None:
    rounds, at_once, total = 12, 32, 128
    done = dict.fromkeys(range(1, total + 1), 0)
    running = set(range(1, at_once + 1))
    lead = 0
    async with (
        target_server(engine={"max_sessions": at_once}) as server,
        server.client() as client,
    ):
        await client.send(*(opening(number, sampling=LONG) for number in running))
        while running:
            event = await client.event()
            match kinds([event]):
                case ["released"]:
                    running.discard(event.session)
                    following = event.session + at_once
                    if following <= total:
                        running.add(following)
                        await client.send(opening(following, sampling=LONG))
                case ["opened" | "ended"]:
                    number = event.session
                    done[number] += 1
                    peers = [
                        done[other] for other in running if other // at_once == number // at_once
                    ]
                    lead = max(lead, done[number] - min(peers))
                    if done[number] > rounds:
                        await client.send(release(number))
                    else:
                        asked = {"round_id": done[number], "position": done[number] - 1}
                        await client.send(advance(number, **asked))
                case kind:
                    assert kind == ["verified"]
        assert await counted(server, "outrider_target_sessions") == 0
        assert await counted(server, "outrider_target_rounds_total") == rounds * total
    assert set(done.values()) == {rounds + 1}
    # Nobody is served twice while another one waits for its turn, give or take what is on the way.
    assert lead <= 4


@pytest.mark.parametrize(
    ("action", "reason", "told"),
    [
        (pb.Action(session=5), pb.INVALID, "no kind"),
        (advance(5), pb.SESSION_LOST, "not held here"),
        (opening(1), pb.INVALID, "open in epoch 0"),
        (advance(1, epoch=3), pb.SESSION_LOST, "epoch 3"),
        (advance(1, position=4), pb.SESSION_LOST, "holds 0 output tokens, not 4"),
        (advance(1, draft=(1, 5)), pb.INVALID, "the draft has token id 5; ids of this model lie"),
        (advance(1, draft=(2**32 - 1,)), pb.INVALID, "token id 4294967295"),
        (advance(1, draft=(0,) * 65), pb.INVALID, "65 tokens; this target takes at most 64"),
        (advance(1, run=2**32 - 1), pb.INVALID, "run is 4294967295"),
        (opening(5, prompt_ids=[]), pb.INVALID, "the prompt is empty"),
        (opening(5, prompt_ids=[5]), pb.INVALID, "token id 5"),
        (opening(5, prompt_ids=[0] * 1020), pb.CONTEXT_LENGTH_EXCEEDED, "together 1040"),
        (opening(5, output_ids=[7]), pb.INVALID, "output_ids has token id 7"),
        (opening(5, output_ids=[0] * 21), pb.INVALID, "21 tokens, more than the 20 of max_tokens"),
        (opening(5, tenant="t" * 2000), pb.INVALID, "tenant has 2000 characters"),
        (opening(5, sampling=pb.Sampling()), pb.INVALID, "top_p is 0.0"),
        (
            opening(5, near_draft=pb.NearDraft(drafter="magic", max_lookahead=4)),
            pb.INVALID,
            "drafter 'magic'; this server has ngram",
        ),
        (
            opening(5, sampling=pb.Sampling(top_p=1, repetition_penalty=1, max_tokens=2**32 - 1)),
            pb.CONTEXT_LENGTH_EXCEEDED,
            "max_tokens is 4294967295",
        ),
        (
            opening(5, sampling=pb.Sampling(top_p=1, temperature=math.nan, max_tokens=9)),
            pb.INVALID,
            "temperature is nan",
        ),
        (
            opening(
                5,
                sampling=pb.Sampling(
                    top_p=1, repetition_penalty=1, max_tokens=9, logprobs=4_000_000_000
                ),
            ),
            pb.INVALID,
            "logprobs is 4000000000",
        ),
    ],
)
async def test_garbage_is_answered_and_harms_nobody(target_server, action, reason, told) -> None:
    async with target_server() as server, server.client() as client:
        await client.open(1)
        await client.send(action)
        answer = await client.event()
        assert answer.session == action.session
        assert answer.failed.reason == reason
        assert told in answer.failed.message
        assert "\n" not in answer.failed.message
        assert answer.failed.HasField("round_id") == (action.WhichOneof("kind") == "advance")
        assert kinds(await client.round(advance(1, round_id=2))) == ["verified", "ended"]
        await client.send(release())
        await client.event()
        assert await counted(server, "outrider_target_sessions") == 0


async def test_a_flood_of_rounds_is_refused_in_part_and_every_one_has_one_end(
    target_server,
) -> None:
    async with target_server() as server, server.client() as client:
        await client.open(1, sampling=LONG)
        await client.send(*(advance(1, round_id=number) for number in range(1, 101)))
        ends: list[pb.Event] = []
        while len(ends) < 100:
            event = await client.event()
            if event.WhichOneof("kind") != "verified":
                ends.append(event)
        assert {event.ended.round_id or event.failed.round_id for event in ends} == {*range(1, 101)}
        refused = [event.failed.code for event in ends if event.HasField("failed")]
        assert set(refused) == {"too_many_actions"}
        assert kinds(await client.round(advance(1, round_id=101))) == ["verified", "ended"]


async def test_an_older_round_is_stale_and_the_same_one_repeats_and_goes_on(target_server) -> None:
    async with target_server() as server, server.client() as client:
        await client.open(1)
        first = await client.round(advance(round_id=5, run=2))
        again = await client.round(advance(round_id=5, run=4, draft=(1, 1)))
        (old,) = await client.round(advance(round_id=4, position=3))
    assert [event.verified for event in again[:3]] == [event.verified for event in first[:3]]
    assert len(tokens(again)) == 5
    assert old.failed.reason == pb.STALE_ROUND
    assert old.failed.round_id == 4


async def test_a_later_round_stops_the_running_one_and_undoes_what_lies_beyond(
    target_server,
) -> None:
    async with target_server() as server, server.client() as client:
        await client.open(1, sampling=LONG)
        whole = tokens(await client.round(advance(run=20)))
        await client.send(advance(round_id=2, position=21, run=800))
        early = await client.event()
        await client.send(advance(round_id=3, position=2, run=5))
        stopped = [early, *await client.rest()]
        later = await client.rest()
    assert stopped[-1].ended.round_id == 2
    assert len(tokens(stopped)) < 800
    assert {event.verified.round_id for event in later[:-1]} == {3}
    assert tokens(later) == whole[2:8]


async def test_cancel_ends_the_round_and_only_that_one(target_server) -> None:
    async with target_server() as server, server.client() as client:
        await client.open(1, sampling=LONG)
        await client.send(advance(run=800))
        await client.send(cancel(2))
        early = await client.event()
        await client.send(cancel(1), cancel(1), cancel(1, session=77))
        events = [early, *await client.rest()]
        assert events[-1].ended.round_id == 1
        assert 0 < len(tokens(events)) < 801
        position = len(tokens(events))
        assert kinds(await client.round(advance(round_id=2, position=position, run=1))) == [
            "verified",
            "verified",
            "ended",
        ]


async def test_release_is_always_answered_and_frees_the_session(target_server) -> None:
    async with target_server(engine={"max_sessions": 1}) as server, server.client() as client:
        await client.open(1, sampling=LONG)
        await client.send(advance(run=800), release())
        assert kinds(await client.rest())[-1] == "ended"
        assert kinds([await client.event()]) == ["released"]
        await client.send(release(1), release(99))
        assert kinds([await client.event(), await client.event()]) == ["released", "released"]
        full = [await client.open(2), await client.open(3)]
        assert kinds(full) == ["opened", "failed"]
        assert full[1].failed.reason == pb.OVERLOADED


async def test_a_session_opened_again_in_a_later_epoch_goes_on_from_its_output(
    target_server,
) -> None:
    async with target_server() as server, server.client() as client:
        await client.open(1)
        whole = tokens(await client.round(advance(run=9)))
        reopened = await client.open(1, epoch=1, output_ids=whole[:4])
        assert reopened.opened.epoch == 1
        (old,) = await client.round(advance(round_id=2, position=4))
        assert old.failed.reason == pb.SESSION_LOST
        events = await client.round(advance(epoch=1, round_id=1, position=4, run=5))
        assert tokens(events) == whole[4:10]


async def test_sessions_of_a_broken_stream_go_on_over_another_one(target_server) -> None:
    async with target_server() as server:
        async with server.client() as client:
            await client.open(1, sampling=LONG)
            await client.send(advance(run=800))
            first = await client.event()
        async with server.client() as client:
            events = await client.round(advance(run=9))
            assert events[0].verified == first.verified
            assert len(tokens(events)) == 10
            assert await counted(server, "outrider_target_leases_expired_total") == 0


async def test_a_session_can_be_taken_from_a_stream_that_still_seems_alive(target_server) -> None:
    async with target_server() as server, server.client() as dead, server.client() as client:
        await dead.open(1, sampling=LONG)
        await dead.send(advance(run=800))
        first = await dead.event()
        events = await client.round(advance(run=9))
        assert events[0].verified == first.verified
        assert len(tokens(events)) == 10
        assert (await dead.rest())[-1].ended.round_id == 1
        assert kinds([await client.open(1, epoch=0)]) == ["failed"]


async def test_an_opening_whose_answer_was_lost_may_be_asked_again(target_server) -> None:
    async with target_server(engine={"max_sessions": 1}) as server:
        async with server.client() as client:
            await client.open(1)
        async with server.client() as client:
            assert kinds([await client.open(1)]) == ["opened"]
            assert kinds(await client.round(advance())) == ["verified", "ended"]


async def test_a_session_whose_lease_ends_is_released(target_server) -> None:
    async with target_server(server={"lease_s": 0.1}) as server:
        async with server.client() as client:
            await client.open(1, sampling=LONG)
            await client.send(advance(run=800))
            await client.event()
        await until(server, "outrider_target_leases_expired_total", 1)
        await until(server, "outrider_target_sessions", 0)
        async with server.client() as client:
            (lost,) = await client.round(advance(round_id=2))
            assert lost.failed.reason == pb.SESSION_LOST


async def test_a_gateway_that_has_asked_its_last_still_gets_its_answers(target_server) -> None:
    async with target_server() as server, server.client() as client:
        await client.send(opening(1), advance(run=9), release())
        await client.call.done_writing()
        assert kinds([await client.event()]) == ["opened"]
        events = await client.rest()
        assert events[-1].ended.round_id == 1
        assert kinds([await client.event()]) == ["released"]
        assert await client.call.read() is not None
        assert (await client.call.code()).name == "OK"


async def test_calls_beyond_the_limit_are_refused_and_health_is_not(target_server) -> None:
    async with (
        target_server(server={"concurrency_limit": 1}) as server,
        server.client() as client,
        server.channel() as channel,
    ):
        await client.open(1)
        async with server.client() as other:
            assert await other.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "concurrency_limit" in await other.call.details()
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert kinds(await client.round(advance()))[-1] == "ended"
