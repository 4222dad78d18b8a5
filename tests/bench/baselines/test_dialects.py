"""What servers are asked, and how their streams are read."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from outrider.bench.baselines.answer import Chunk
from outrider.bench.baselines.dialects import DIALECTS, HttpLink, read_llama, read_openai
from outrider.bench.baselines.processes import PeerProcess, free_port
from outrider.errors import TargetFailed
from tests.bench.baselines.fakes import SERVER

Start = Callable[..., PeerProcess]
PROMPT = (4, 5, 6, 7, 8)


def link_to(start: Start, dialect: str, *ways: str, timeout_s: float = 20.0) -> HttpLink:
    port = free_port()
    process = start(sys.executable, str(SERVER), str(port), *ways)
    return HttpLink(
        "fake", port, DIALECTS[dialect], alive=lambda: process.alive, timeout_s=timeout_s
    )


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_an_answer_tells_what_came_when(start: Start, dialect: str) -> None:
    link = link_to(start, dialect)
    link.wait_until_ready(20.0)
    answer = link.ask(PROMPT, 4, {})
    assert answer.token_ids == (8, 7, 6, 5)
    assert [chunk.tokens for chunk in answer.chunks] == [2, 2]
    assert answer.prompt_tokens == len(PROMPT)
    assert answer.asked_at < answer.chunks[0].at < answer.chunks[1].at <= answer.ended_at
    assert answer.decode_s > 0.005  # the server pauses between the two


def test_fields_of_a_mode_go_into_the_request(start: Start) -> None:
    link = link_to(start, "openai")
    link.wait_until_ready(20.0)
    with pytest.raises(TargetFailed, match=r"fake answered 400: .*a field unknown"):
        link.ask(PROMPT, 4, {"unknown": True})


def test_a_refusal_is_told_on_one_line(start: Start) -> None:
    link = link_to(start, "llama", "refuse-odd")
    link.wait_until_ready(20.0)
    with pytest.raises(TargetFailed, match=r"fake answered 400: \S.*an odd") as caught:
        link.ask((1, 2), 4, {})
    assert "\n" not in str(caught.value)


def test_a_server_that_reads_another_prompt_is_not_compared(start: Start) -> None:
    link = link_to(start, "openai", "add-bos")
    link.wait_until_ready(20.0)
    with pytest.raises(TargetFailed, match="fake read 6 prompt tokens where 5 were sent"):
        link.ask(PROMPT, 4, {})


def test_a_server_that_dies_in_an_answer_has_not_answered(start: Start) -> None:
    link = link_to(start, "llama", "die-odd")
    link.wait_until_ready(20.0)
    with pytest.raises(TargetFailed, match="fake did not answer properly"):
        link.ask((1, 2), 4, {})


def test_silence_beyond_the_limit_is_a_failure(start: Start) -> None:
    link = link_to(start, "llama", "silent", timeout_s=0.2)
    link.wait_until_ready(20.0)
    with pytest.raises(TargetFailed, match="did not answer properly: timed out") as caught:
        link.ask(PROMPT, 4, {})
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_a_server_that_ends_while_starting_is_not_waited_for(start: Start) -> None:
    link = link_to(start, "openai", "no-start")
    with pytest.raises(TargetFailed, match="fake ended while starting"):
        link.wait_until_ready(60.0)


def test_a_server_that_never_gets_ready_is_given_up() -> None:
    link = HttpLink("fake", free_port(), DIALECTS["llama"], alive=lambda: True, timeout_s=1.0)
    with pytest.raises(TargetFailed, match=r"not ready within 0.1 s"):
        link.wait_until_ready(0.1)


def test_usage_that_contradicts_the_stream_is_not_believed() -> None:
    events = [
        (1.0, {"choices": [{"token_ids": [3, 4]}]}),
        (2.0, {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 3}}),
    ]
    with pytest.raises(ValueError, match="usage counts 3 tokens, the stream held 2"):
        read_openai(events)


def test_chunks_without_tokens_do_not_count() -> None:
    events = [
        (1.0, {"choices": [{"token_ids": [3]}]}),
        (2.0, {"choices": [{"token_ids": [], "finish_reason": "stop"}]}),
    ]
    assert read_openai(events) == ([Chunk(1.0, 1)], (3,), None)


def test_a_token_within_a_character_is_counted_with_the_next() -> None:
    events = [
        (1.0, {"tokens": [5], "tokens_predicted": 1, "tokens_evaluated": 9}),
        (2.0, {"tokens": [7], "tokens_predicted": 3, "tokens_evaluated": 9}),
        (2.5, {"tokens": [], "tokens_predicted": 3, "stop": True}),
    ]
    chunks, token_ids, prompt_tokens = read_llama(events)
    assert chunks == [Chunk(1.0, 1), Chunk(2.0, 2)]
    assert token_ids is None  # one of the three was never told
    assert prompt_tokens == 9
