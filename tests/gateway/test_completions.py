"""What completions say: text, stop, usage, token ids, speculation, streams."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from outrider.errors import Overloaded, TargetFailed
from outrider.types import TokenIds

from .conftest import Serving
from .serving import END, ScriptedTarget, scripted

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = {"model": "bytes", "prompt": "Hi"}
CHAT_HELLO = {"model": "bytes", "messages": [{"role": "user", "content": "Hi"}]}


def saying(text: str, *, chunk: int = 1, end: bool = True) -> ScriptedTarget:
    """A target that says `text`, `chunk` bytes a step."""
    tokens = (*text.encode(), END) if end else tuple(text.encode())
    steps = [tokens[start : start + chunk] for start in range(0, len(tokens), chunk)]
    return ScriptedTarget(lambda _: steps)


def texts(events: list[Any], index: int = 0) -> list[str]:
    pieces = []
    for event in events[:-1]:
        for choice in event["choices"]:
            if choice["index"] == index:
                pieces.append(choice["text"] if "text" in choice else choice["delta"]["content"])
    return pieces


async def test_a_completion_says_what_the_target_said() -> None:
    async with scripted(saying("hello")) as gateway:
        body = (await gateway.post(PATH, HELLO)).json()
    choice = body["choices"][0]
    assert choice == {"index": 0, "finish_reason": "stop", "text": "hello", "logprobs": None}
    assert body["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 6,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert body["object"] == "text_completion"
    assert body["system_fingerprint"] == "fp_0123456789abcdef"


async def test_a_chat_goes_through_the_template_and_answers_as_the_assistant() -> None:
    target = saying("hello")
    async with scripted(target) as gateway:
        body = (await gateway.post(CHAT, CHAT_HELLO)).json()
    assert bytes(target.opened[0].prompt_ids) == b"user: Hi\nassistant:"
    assert body["choices"][0]["message"] == {
        "content": "hello",
        "role": "assistant",
        "refusal": None,
    }
    assert body["choices"][0]["logprobs"] is None


async def test_text_parts_of_a_message_are_joined() -> None:
    target = saying("x")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    async with scripted(target) as gateway:
        await gateway.post(CHAT, {"model": "bytes", "messages": messages})
    assert bytes(target.opened[0].prompt_ids) == b"developer: Be brief.\nuser: a\nb\nassistant:"


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 7, 50])
async def test_a_stream_of_split_characters_is_whole_in_every_chunk(chunk: int) -> None:
    text = "naïve 日本語 🙂 e\u0301 \u2028 done"
    async with scripted(saying(text, chunk=chunk)) as gateway:
        events = await gateway.events(CHAT, CHAT_HELLO)
    pieces = texts(events)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


async def test_an_unfinished_character_is_flushed_at_the_end() -> None:
    tokens = (*b"ok ", *"🙂".encode()[:2])
    target = ScriptedTarget(lambda _: [tokens])
    async with scripted(target) as gateway:
        events = await gateway.events(PATH, HELLO | {"max_tokens": 5})
    assert "".join(texts(events)) == "ok \ufffd"


@pytest.mark.parametrize("chunk", range(1, 12))
@pytest.mark.parametrize("path", [PATH, CHAT])
async def test_nothing_leaks_past_a_stop_string_however_it_is_cut(chunk: int, path: str) -> None:
    target = saying("one STtwo STOP three", chunk=chunk)
    request = (HELLO if path == PATH else CHAT_HELLO) | {"stop": "STOP"}
    async with scripted(target) as gateway:
        events = await gateway.events(path, request | {"return_token_ids": True})
        assert gateway.at_rest()
    pieces = texts(events)
    assert "".join(pieces) == "one STtwo "
    ids = [token for e in events[:-1] for c in e["choices"] for token in c["token_ids"]]
    assert bytes(ids) == b"one STtwo STOP"
    assert [c["finish_reason"] for e in events[:-1] for c in e["choices"]][-1] == "stop"


async def test_only_a_possible_stop_string_is_held_back() -> None:
    async with scripted(saying("aSTbST", end=True)) as gateway:
        events = await gateway.events(PATH, HELLO | {"stop": ["STOP"]})
    assert [piece for piece in texts(events) if piece] == ["a", "STb", "ST"]


@pytest.mark.parametrize("chunk", range(1, 7))
@pytest.mark.parametrize(
    ("stop", "min_tokens", "text", "tokens"),
    [
        ("X", 0, "a", 2),
        ("X", 1, "a", 2),
        ("X", 2, "aXb", 4),
        ("X", 4, "aXbXc", 6),
        ("X", 6, "aXbXc", 6),
        ("Xb", 1, "a", 3),
        ("Xb", 2, "aXbXc", 6),  # its beginning is out already and cannot be taken back
        ("Xb", 3, "aXbXc", 6),
    ],
)
async def test_a_stop_string_ends_no_output_of_fewer_than_min_tokens(
    chunk: int, stop: str, min_tokens: int, text: str, tokens: int
) -> None:
    request = HELLO | {"stop": stop, "min_tokens": min_tokens}
    async with scripted(saying("aXbXc", chunk=chunk)) as gateway:
        body = (await gateway.post(PATH, request)).json()
        events = await gateway.events(PATH, request)
    assert body["choices"][0]["text"] == "".join(texts(events)) == text
    assert body["usage"]["completion_tokens"] == tokens


async def test_an_unfinished_character_of_the_first_min_tokens_is_no_stop_string() -> None:
    target = ScriptedTarget(lambda _: [(*b"ab", 0xE2)])
    async with scripted(target) as gateway:
        request = HELLO | {"stop": "\ufffd", "min_tokens": 3, "max_tokens": 3}
        choice = (await gateway.post(PATH, request)).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab\ufffd", "length")


async def test_usage_counts_up_to_the_token_that_completed_the_stop_string() -> None:
    async with scripted(saying("abcdefgh", chunk=8)) as gateway:
        body = (await gateway.post(PATH, HELLO | {"stop": ["de"], "return_token_ids": True})).json()
    assert body["choices"][0]["text"] == "abc"
    assert bytes(body["choices"][0]["token_ids"]) == b"abcde"
    assert body["usage"]["completion_tokens"] == 5
    assert body["choices"][0]["prompt_token_ids"] == list(b"Hi")


async def test_a_stop_string_ends_the_work_of_the_target_at_once() -> None:
    target = ScriptedTarget(lambda _: itertools.cycle([tuple(b"x"), tuple(b"!")]), delay_s=0.005)
    async with scripted(target) as gateway:
        body = (await gateway.post(PATH, HELLO | {"stop": "!", "max_tokens": 4000})).json()
        assert gateway.at_rest()
    assert body["choices"][0] == {
        "index": 0,
        "finish_reason": "stop",
        "text": "x",
        "logprobs": None,
    }


async def test_a_stop_string_at_the_last_token_beats_the_length() -> None:
    async with scripted(saying("abc", end=False)) as gateway:
        body = (await gateway.post(PATH, HELLO | {"stop": "c", "max_tokens": 3})).json()
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["text"] == "ab"


async def test_the_budget_ends_an_output_with_length() -> None:
    async with scripted(saying("abcdef", chunk=4)) as gateway:
        body = (await gateway.post(PATH, HELLO | {"max_tokens": 2})).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["text"] == "ab"
    assert body["usage"]["completion_tokens"] == 2


async def test_a_stop_token_has_an_id_but_no_text() -> None:
    async with scripted(saying("abc")) as gateway:
        request = HELLO | {"stop_token_ids": [ord("c")], "return_token_ids": True}
        body = (await gateway.post(PATH, request)).json()
    assert body["choices"][0]["text"] == "ab"
    assert body["choices"][0]["token_ids"] == list(b"abc")
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_the_end_token_is_passed_over_when_asked() -> None:
    target = ScriptedTarget(lambda _: [tuple(b"a"), (END,), tuple(b"b")])
    async with scripted(target) as gateway:
        body = (await gateway.post(PATH, HELLO | {"ignore_eos": True, "max_tokens": 3})).json()
    assert body["choices"][0]["text"] == "ab"
    assert body["choices"][0]["finish_reason"] == "length"


async def test_tokens_of_one_step_come_in_one_chunk_with_the_role_first() -> None:
    async with scripted(saying("abcdef", chunk=3)) as gateway:
        events = await gateway.events(CHAT, CHAT_HELLO)
    deltas = [choice["delta"] for event in events[:-1] for choice in event["choices"]]
    assert deltas[0] == {"role": "assistant", "content": "abc"}
    assert deltas[1] == {"content": "def"}
    assert all("role" not in delta for delta in deltas[1:])


async def test_the_last_chunk_may_carry_text_and_carries_the_speculation() -> None:
    async with scripted(saying("abc", chunk=4)) as gateway:
        events = await gateway.events(CHAT, CHAT_HELLO)
    assert len(events) == 2
    assert events[0]["choices"][0]["finish_reason"] == "stop"
    assert events[0]["choices"][0]["delta"]["content"] == "abc"
    assert events[0]["speculation"]["drafted_tokens"] == 3
    assert "usage" not in events[0]


async def test_include_usage_adds_a_last_chunk_without_choices() -> None:
    options = {"stream_options": {"include_usage": True}}
    async with scripted(saying("abc")) as gateway:
        events = await gateway.events(CHAT, CHAT_HELLO | options)
    *chunks, last, done = events
    assert done == "[DONE]"
    assert all(chunk["usage"] is None and "speculation" not in chunk for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert last["speculation"]["rounds"] == 4


async def test_continuous_usage_grows_from_chunk_to_chunk() -> None:
    options = {"stream_options": {"continuous_usage_stats": True}}
    async with scripted(saying("abc", chunk=2)) as gateway:
        events = await gateway.events(PATH, HELLO | options)
    assert [event["usage"]["completion_tokens"] for event in events[:-1]] == [2, 4]


async def test_copies_and_prompts_have_indices_in_order() -> None:
    def echo(request: Any) -> list[TokenIds]:
        return [request.prompt_ids, (ord("0") + request.choice,), (END,)]

    async with scripted(ScriptedTarget(echo)) as gateway:
        request = {"model": "bytes", "prompt": ["a", "b"], "n": 2, "return_token_ids": True}
        body = (await gateway.post(PATH, request)).json()
        events = await gateway.events(PATH, request)
    assert [choice["text"] for choice in body["choices"]] == ["a0", "a1", "b0", "b1"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["choices"][3]["prompt_token_ids"] == [ord("b")]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["total_tokens"] == 14
    assert ["".join(texts(events, index)) for index in range(4)] == ["a0", "a1", "b0", "b1"]
    assert sum("speculation" in event for event in events[:-1]) == 1
    assert "speculation" in events[-2]


async def test_copies_share_one_noise_key_and_unseeded_prompts_do_not() -> None:
    target = saying("x")
    async with scripted(target) as gateway:
        await gateway.post(PATH, {"model": "bytes", "prompt": ["a", "a"], "n": 2})
        first, second, third, fourth = target.opened
        assert first.noise_key == second.noise_key != third.noise_key == fourth.noise_key
        assert [each.choice for each in target.opened] == [0, 1, 0, 1]
        await gateway.post(PATH, {"model": "bytes", "prompt": ["a", "a"], "seed": 7})
    assert target.opened[4].noise_key == target.opened[5].noise_key


@pytest.mark.parametrize("prompt", ["0 1", [0, 1], [[0, 1]], ["0 1"]])
async def test_a_prompt_may_be_text_or_token_ids(table_gateway: Serving, prompt: Any) -> None:
    async with table_gateway() as gateway:
        request = {"model": "target", "prompt": prompt, "temperature": 0, "max_tokens": 5}
        body = (await gateway.post(PATH, request | {"return_token_ids": True})).json()
    ids = body["choices"][0]["token_ids"]
    assert body["choices"][0]["text"] == "".join(f" {token}" for token in ids)
    assert body["choices"][0]["prompt_token_ids"] == [0, 1]


async def test_a_seed_fixes_the_output_whatever_drafts(table_gateway: Serving) -> None:
    request = {"model": "target", "prompt": [0], "seed": 11, "max_tokens": 40}
    policies = [
        {"enabled": False},
        {"drafter": "table:draft"},
        {"drafter": "ngram"},
        {"max_lookahead": 2},
    ]
    async with table_gateway() as gateway:
        replies = [
            (await gateway.post(PATH, request | {"speculation": policy})).json()
            for policy in policies
        ]
    assert len({reply["choices"][0]["text"] for reply in replies}) == 1
    assert [reply["speculation"]["drafter"] for reply in replies] == [
        None,
        "table:draft",
        "ngram",
        "table:draft",
    ]


async def test_speculation_is_accounted_for(table_gateway: Serving) -> None:
    request = {"model": "target", "prompt": [0], "temperature": 0, "max_tokens": 60}
    async with table_gateway() as gateway:
        report = (await gateway.post(PATH, request)).json()["speculation"]
        plain = (await gateway.post(PATH, request | {"speculation": {"enabled": False}})).json()
        zero = (await gateway.post(PATH, request | {"speculation": {"max_lookahead": 0}})).json()
        drafted = gateway.pipeline.metrics.registry.get_sample_value(
            "spec_decode_num_draft_tokens_total", {"drafter": "table:draft"}
        )
    assert report["drafter"] == "table:draft"
    assert report["drafted_tokens"] == drafted > 0
    assert 0 < report["accepted_tokens"] <= report["drafted_tokens"]
    assert report["acceptance_rate"] == round(
        report["accepted_tokens"] / report["drafted_tokens"], 4
    )
    assert report["mean_acceptance_length"] == round(60 / report["rounds"], 4) > 1
    assert report["drafts"] < report["rounds"]
    assert (report["verification"], report["exact"], report["reason"]) == (
        "greedy",
        "identical",
        None,
    )
    for off in (plain, zero):
        assert off["speculation"]["drafter"] is None
        assert off["speculation"]["drafted_tokens"] == 0
        assert off["speculation"]["acceptance_rate"] is None
        assert off["speculation"]["reason"] == "the request turned speculation off"


async def test_a_sampled_response_without_a_seed_is_exact_in_distribution(
    table_gateway: Serving,
) -> None:
    async with table_gateway() as gateway:
        body = (await gateway.post(PATH, {"model": "target", "prompt": [0], "n": 3})).json()
        assert gateway.at_rest()
    assert body["speculation"]["verification"] == "block"
    assert body["speculation"]["exact"] == "distribution"
    assert len({choice["text"] for choice in body["choices"]}) == 3


async def test_a_server_without_drafters_says_so(table_gateway: Serving) -> None:
    async with table_gateway(drafts=("none",)) as gateway:
        body = (await gateway.post(PATH, {"model": "target", "prompt": [0]})).json()
    assert body["speculation"]["reason"] == "this server runs without drafters"


async def test_an_absent_budget_is_the_default_or_what_is_left(table_gateway: Serving) -> None:
    async with table_gateway(table={"context_length": 20}) as gateway:
        body = (await gateway.post(PATH, {"model": "target", "prompt": [0] * 15})).json()
        assert body["usage"]["completion_tokens"] == 5
    async with table_gateway(limits={"default_max_tokens": 7}) as gateway:
        body = (await gateway.post(PATH, {"model": "target", "prompt": [0]})).json()
        assert body["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_token_has_a_status(stream: bool) -> None:
    target = ScriptedTarget(lambda _: [TargetFailed("the weights are broken")])
    async with scripted(target) as gateway:
        response = await gateway.post(PATH, HELLO | {"stream": stream})
        assert gateway.at_rest()
    assert response.status_code == 502
    assert response.json()["error"] == {
        "message": "the weights are broken",
        "type": "target_error",
        "param": None,
        "code": "target_failed",
    }


async def test_a_full_target_answers_429() -> None:
    target = ScriptedTarget(lambda _: [Overloaded("no room", retry_after_s=3)])
    async with scripted(target) as gateway:
        response = await gateway.post(PATH, HELLO | {"stream": True})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"


async def test_an_error_in_mid_stream_is_an_event_and_the_end() -> None:
    target = ScriptedTarget(lambda _: [tuple(b"a"), tuple(b"b"), TargetFailed("gone")])
    async with scripted(target) as gateway:
        events = await gateway.events(PATH, HELLO)
        assert gateway.at_rest()
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == "ab"
    assert events[-1]["error"]["message"] == "gone"


async def test_an_unforeseen_error_shows_nothing_of_its_inside() -> None:
    target = ScriptedTarget(lambda _: [ZeroDivisionError("secret")])
    async with scripted(target) as gateway:
        response = await gateway.post(PATH, HELLO)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text


async def test_one_failing_copy_ends_the_others() -> None:
    def steps(request: Any) -> Any:
        return [TargetFailed("gone")] if request.choice else itertools.repeat(tuple(b"a"))

    target = ScriptedTarget(steps, delay_s=0.01)
    async with scripted(target) as gateway:
        response = await gateway.post(PATH, HELLO | {"n": 3, "max_tokens": 4000})
        assert gateway.at_rest()
    assert response.status_code == 502
