"""Streams over a real socket, with scripted times: what is counted, and when it came."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from outrider.bench import Chunk, Counting, Drafts, EndpointSubject, Question
from outrider.endpoints import Refused, connect
from outrider.errors import RequestError, TargetFailed

from .scripted import ScriptedServer

pytestmark = pytest.mark.anyio

CHAT = Question(messages=({"role": "user", "content": "hi"},))
SCRIPT = [(0.5, "a", 1), (0.25, "bcd", 3), (1.0, "e", 1)]
FIELDS = {"max_tokens": 8, "temperature": 0}


@asynccontextmanager
async def subject(server: ScriptedServer, **fields):
    async with (
        server.running(),
        connect(server.url, api_key=None, timeout_s=20, concurrency=1) as [endpoint],
    ):
        yield EndpointSubject(endpoint, "scripted", {**FIELDS, **fields}, "it", server.clock)


async def test_usage_in_every_chunk_tells_the_tokens_of_each(clock) -> None:
    async with subject(ScriptedServer(clock, [SCRIPT])) as asked:
        answer = await asked.ask(CHAT)
    assert answer.counting is Counting.EACH
    assert answer.chunks == (Chunk(100.5, 1), Chunk(100.75, 3), Chunk(101.75, 1))
    assert (answer.asked_at, answer.tokens, answer.prompt_tokens) == (100.0, 5, 7)
    assert answer.text == "abcde"
    assert (answer.ttft_s, answer.latency_s, answer.tpot_s) == (0.5, 1.75, 1.25 / 4)
    assert answer.gaps_s() == [(0.25, 3), (1.0, 1)]


async def test_as_many_chunks_as_tokens_are_a_token_each(clock) -> None:
    script = [(1.0, "a", 1), (1.0, "b", 1)]
    async with subject(ScriptedServer(clock, [script], usage="last")) as asked:
        answer = await asked.ask(CHAT)
    assert answer.counting is Counting.ONE
    assert [chunk.tokens for chunk in answer.chunks] == [1, 1]


async def test_a_token_that_ends_the_output_without_text_needs_no_chunk(clock) -> None:
    script = [(1.0, "a", 1), (1.0, "b", 1), (1.0, "", 1)]
    async with subject(ScriptedServer(clock, [script], usage="last")) as asked:
        answer = await asked.ask(CHAT)
    assert answer.counting is Counting.ONE
    assert (len(answer.chunks), answer.tokens) == (2, 3)


async def test_fewer_chunks_than_tokens_leave_it_open_which_came_when(clock) -> None:
    async with subject(ScriptedServer(clock, [SCRIPT], usage="last")) as asked:
        answer = await asked.ask(CHAT)
    assert answer.counting is Counting.TOTAL
    assert answer.tokens == 5
    assert [chunk.tokens for chunk in answer.chunks] == [None, None, None]


async def test_without_usage_chunks_are_taken_for_tokens(clock) -> None:
    async with subject(ScriptedServer(clock, [SCRIPT], usage="never")) as asked:
        answer = await asked.ask(CHAT)
    assert answer.counting is Counting.CHUNKS
    assert (answer.tokens, answer.prompt_tokens) == (3, None)


@pytest.mark.parametrize(
    ("refuses", "last"),
    [
        ((), {"include_usage": True, "continuous_usage_stats": True}),
        (("continuous_usage_stats",), {"include_usage": True}),
        (("stream_options",), None),
    ],
)
async def test_a_server_that_refuses_to_tell_its_usage_is_asked_without(
    clock, refuses, last
) -> None:
    server = ScriptedServer(clock, [SCRIPT], refuses=refuses)
    async with subject(server) as asked:
        await asked.ask(CHAT)
        first = len(server.asked)
        await asked.ask(CHAT)
    assert len(server.asked) == first + 1
    assert server.asked[-1].get("stream_options") == last


async def test_what_a_server_refuses_for_another_reason_is_refused_as_at_first(clock) -> None:
    server = ScriptedServer(clock, [SCRIPT], refuses=("ignore_eos",))
    async with subject(server, ignore_eos=True) as asked:
        with pytest.raises(Refused, match="unknown field ignore_eos"):
            await asked.ask(CHAT)


async def test_a_plain_completion_is_asked_for_as_one(clock) -> None:
    server = ScriptedServer(clock, [SCRIPT])
    async with subject(server) as asked:
        answer = await asked.ask(Question(text="go on"))
    assert server.asked[0]["prompt"] == "go on"
    assert answer.text == "abcde"


@pytest.mark.parametrize(
    ("tail", "drafts"),
    [
        (
            {"speculation": {"drafted_tokens": 9, "accepted_tokens": 4, "rounds": 3}},
            Drafts(9, 4, 3),
        ),
        ({"timings": {"draft_n": 9, "draft_n_accepted": 4}}, Drafts(9, 4, None)),
        ({}, None),
    ],
)
async def test_what_a_server_tells_of_its_drafts_is_kept(clock, tail, drafts) -> None:
    async with subject(ScriptedServer(clock, [SCRIPT], tail=tail)) as asked:
        assert (await asked.ask(CHAT)).drafts == drafts


async def test_a_server_that_does_not_heed_speculation_is_told_so(clock) -> None:
    tail = {"speculation": {"rounds": 1}}
    async with subject(ScriptedServer(clock, [SCRIPT], tail=tail), speculation={}) as asked:
        assert (await asked.ask(CHAT)).tokens == 5
    async with subject(ScriptedServer(clock, [SCRIPT]), speculation={}) as asked:
        with pytest.raises(RequestError, match="give the second URL as --baseline"):
            await asked.ask(CHAT)


async def test_a_stream_that_breaks_off_is_an_error_with_the_servers_words(clock) -> None:
    async with subject(ScriptedServer(clock, [SCRIPT], breaks=True)) as asked:
        with pytest.raises(TargetFailed, match="broke its stream off: 'out of memory'"):
            await asked.ask(CHAT)


async def test_more_tokens_than_were_asked_for_are_an_error(clock) -> None:
    async with subject(ScriptedServer(clock, [[(1.0, "a", 9)]])) as asked:
        with pytest.raises(TargetFailed, match="9 tokens where at most 8"):
            await asked.ask(CHAT)


async def test_an_answer_without_a_token_is_an_error(clock) -> None:
    async with subject(ScriptedServer(clock, [[(1.0, "", 0)]])) as asked:
        with pytest.raises(TargetFailed, match="no token"):
            await asked.ask(CHAT)


async def test_a_busy_server_is_not_waited_for(clock) -> None:
    server = ScriptedServer(clock, [SCRIPT], fail=[429])
    async with subject(server) as asked:
        with pytest.raises(TargetFailed, match="answered 429"):
            await asked.ask(CHAT)
    assert len(server.asked) == 1
