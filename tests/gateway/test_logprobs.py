"""Log probabilities in answers: whose, in which form, and with which chunk."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from outrider.gateway.logprobs import LogprobsWriter
from outrider.text import HFTokenizer, IdTokenizer
from outrider.types import TokenIds, TokenLogprobs

from .serving import BYTE_MODEL, END, ScriptedTarget, scripted

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "bytes", "prompt": "Hi", "logprobs": 2}
CHAT_HELLO: dict[str, Any] = {
    "model": "bytes",
    "messages": [{"role": "user", "content": "Hi"}],
    "logprobs": True,
    "top_logprobs": 2,
}
ASKED = {PATH: HELLO, CHAT: CHAT_HELLO}
TEXT = "naïve 日本 🙂!"


def saying(text: str, *, chunk: int = 1, end: bool = True) -> ScriptedTarget:
    tokens = (*text.encode(), END) if end else tuple(text.encode())
    steps = [tokens[start : start + chunk] for start in range(0, len(tokens), chunk)]
    return ScriptedTarget(lambda _: steps)


def chunks(events: list[Any], index: int = 0) -> list[Any]:
    """The choices of a stream's chunks that belong to one choice."""
    return [c for event in events[:-1] for c in event["choices"] if c["index"] == index]


def joined(events: list[Any], index: int = 0) -> dict[str, list[Any]]:
    """The log probabilities of all chunks of a choice, one behind the other."""
    found: dict[str, list[Any]] = {}
    for choice in chunks(events, index):
        for name, values in (choice["logprobs"] or {}).items():
            if name != "refusal":
                found.setdefault(name, []).extend(values)
    return found


def without_refusal(logprobs: dict[str, Any]) -> dict[str, Any]:
    return {name: values for name, values in logprobs.items() if name != "refusal"}


async def test_a_chat_tells_every_token_with_its_bytes_and_its_rivals() -> None:
    async with scripted(saying("é")) as gateway:
        choice = (await gateway.post(CHAT, CHAT_HELLO)).json()["choices"][0]
    assert choice["logprobs"] == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -0.25,
                "bytes": [0xC3],
                "top_logprobs": [
                    {"token": "\ufffd", "logprob": -0.25, "bytes": [0xC3]},
                    {"token": "\ufffd", "logprob": -1.25, "bytes": [0xC4]},
                ],
            },
            {
                "token": "\ufffd",
                "logprob": -0.5,
                "bytes": [0xA9],
                "top_logprobs": [
                    {"token": "\ufffd", "logprob": -0.5, "bytes": [0xA9]},
                    {"token": "\ufffd", "logprob": -1.5, "bytes": [0xAA]},
                ],
            },
        ],
        "refusal": None,
    }


async def test_a_plain_completion_tells_every_token_in_lists() -> None:
    async with scripted(saying("ab")) as gateway:
        choice = (await gateway.post(PATH, HELLO)).json()["choices"][0]
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.25, -0.5],
        "top_logprobs": [{"a": -0.25, "b": -1.25}, {"b": -0.5, "c": -1.5}],
        "text_offset": [0, 1],
    }


async def test_without_rivals_only_the_tokens_themselves_are_told() -> None:
    async with scripted(saying("a")) as gateway:
        plain = (await gateway.post(PATH, HELLO | {"logprobs": 0})).json()
        chat = (await gateway.post(CHAT, CHAT_HELLO | {"top_logprobs": 0})).json()
    assert plain["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.25}]
    assert chat["choices"][0]["logprobs"]["content"] == [
        {"token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": []}
    ]


@pytest.mark.parametrize("path", [PATH, CHAT])
async def test_nothing_is_told_unasked(path: str) -> None:
    asked = {name: value for name, value in ASKED[path].items() if "logprobs" not in name}
    async with scripted(saying("ab")) as gateway:
        whole = (await gateway.post(path, asked)).json()
        events = await gateway.events(path, asked)
    assert whole["choices"][0]["logprobs"] is None
    assert all(choice["logprobs"] is None for choice in chunks(events))


@pytest.mark.parametrize("path", [PATH, CHAT])
@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 50])
async def test_a_stream_tells_the_same_as_a_whole_response(path: str, chunk: int) -> None:
    async with scripted(saying(TEXT, chunk=chunk)) as gateway:
        whole = (await gateway.post(path, ASKED[path])).json()
        events = await gateway.events(path, ASKED[path])
    assert joined(events) == without_refusal(whole["choices"][0]["logprobs"])


@pytest.mark.parametrize("path", [PATH, CHAT])
async def test_the_entries_of_a_chunk_are_those_of_its_token_ids(path: str) -> None:
    async with scripted(saying(TEXT, chunk=3)) as gateway:
        events = await gateway.events(path, ASKED[path] | {"return_token_ids": True})
    for choice in chunks(events):
        ids = [token_id for token_id in choice["token_ids"] if token_id != END]
        told = choice["logprobs"] or {}
        if path == CHAT:
            assert [entry["bytes"] for entry in told.get("content", [])] == [[each] for each in ids]
        else:
            assert len(told.get("tokens", [])) == len(ids)


async def test_a_chunk_without_text_goes_out_for_its_log_probabilities() -> None:
    async with scripted(saying("🙂")) as gateway:
        told = await gateway.events(CHAT, CHAT_HELLO)
        untold = await gateway.events(CHAT, CHAT_HELLO | {"logprobs": False, "top_logprobs": 0})
    pieces = [choice["delta"]["content"] for choice in chunks(told)]
    assert pieces == ["", "", "", "🙂", ""]
    assert [len(c["logprobs"]["content"]) for c in chunks(told)[:-1]] == [1, 1, 1, 1]
    assert [choice["delta"]["content"] for choice in chunks(untold)] == ["", "🙂", ""]


@pytest.mark.parametrize("path", [PATH, CHAT])
async def test_the_token_that_ends_an_output_is_not_told_of(path: str) -> None:
    async with scripted(saying("ab", chunk=3)) as gateway:
        whole = (await gateway.post(path, ASKED[path])).json()
        events = await gateway.events(path, ASKED[path])
    async with scripted(saying("ab", chunk=2)) as gateway:
        stopped = (await gateway.post(path, ASKED[path] | {"stop_token_ids": [98]})).json()
    assert whole["usage"]["completion_tokens"] == 3
    name = "tokens" if path == PATH else "content"
    assert len(whole["choices"][0]["logprobs"][name]) == 2
    assert len(stopped["choices"][0]["logprobs"][name]) == 1
    assert len(joined(events)[name]) == 2


async def test_a_lone_end_token_leaves_lists_without_entries() -> None:
    async with scripted(saying("")) as gateway:
        plain = (await gateway.post(PATH, HELLO)).json()["choices"][0]
        chat = (await gateway.post(CHAT, CHAT_HELLO)).json()["choices"][0]
        events = await gateway.events(CHAT, CHAT_HELLO)
    assert set(map(tuple, plain["logprobs"].values())) == {()}
    assert chat["logprobs"] == {"content": [], "refusal": None}
    assert [choice["logprobs"] for choice in chunks(events)] == [None]


async def test_an_end_token_that_was_passed_over_is_told_of_by_name() -> None:
    target = ScriptedTarget(lambda _: [tuple(b"a"), (END,), tuple(b"b")])
    async with scripted(target) as gateway:
        request = HELLO | {"ignore_eos": True, "max_tokens": 3}
        told = (await gateway.post(PATH, request)).json()["choices"][0]["logprobs"]
    assert told["tokens"] == ["a", "<end>", "b"]
    assert told["text_offset"] == [0, 1, 1]


@pytest.mark.parametrize("path", [PATH, CHAT])
@pytest.mark.parametrize("chunk", [1, 2, 4, 9])
async def test_tokens_behind_a_stop_string_are_not_told_of(path: str, chunk: int) -> None:
    request = ASKED[path] | {"stop": "ST", "return_token_ids": True}
    async with scripted(saying("aSbSTcd", chunk=chunk)) as gateway:
        whole = (await gateway.post(path, request)).json()["choices"][0]
        events = await gateway.events(path, request)
    assert bytes(whole["token_ids"]) == b"aSbST"
    told = without_refusal(whole["logprobs"])
    assert joined(events) == told
    tokens = told.get("tokens") or [entry["token"] for entry in told["content"]]
    assert tokens == ["a", "S", "b", "S", "T"]


async def test_offsets_count_text_that_a_possible_stop_string_holds_back() -> None:
    async with scripted(saying("aSTb")) as gateway:
        events = await gateway.events(PATH, HELLO | {"stop": "STOP"})
    assert [choice["text"] for choice in chunks(events)] == ["a", "", "", "STb", ""]
    assert joined(events)["text_offset"] == [0, 1, 2, 3]


@pytest.mark.parametrize("chunk", [1, 2, 3, 50])
async def test_offsets_count_characters_and_a_split_one_counts_once(chunk: int) -> None:
    async with scripted(saying(TEXT, chunk=chunk)) as gateway:
        events = await gateway.events(PATH, HELLO)
    whole = TEXT.encode()
    assert joined(events)["text_offset"] == [
        len(whole[:count].decode("utf-8", "ignore")) for count in range(len(whole))
    ]


@pytest.mark.parametrize("path", [PATH, CHAT])
async def test_every_choice_is_told_of_by_itself(path: str) -> None:
    def steps(request: Any) -> list[TokenIds]:
        return [tuple(b"xy"), (ord("0") + request.choice,), (END,)]

    async with scripted(ScriptedTarget(steps)) as gateway:
        whole = (await gateway.post(path, ASKED[path] | {"n": 3})).json()
        events = await gateway.events(path, ASKED[path] | {"n": 3})
    for index, choice in enumerate(whole["choices"]):
        told = without_refusal(choice["logprobs"])
        assert joined(events, index) == told
        if path == PATH:
            assert told["tokens"] == ["x", "y", str(index)]
            assert told["text_offset"] == [0, 1, 2]


async def test_what_json_cannot_carry_becomes_openais_least_number() -> None:
    def never(token_id: int, position: int, count: int) -> TokenLogprobs:
        return TokenLogprobs(token_id, -math.inf, ((97, -0.0), (98, -1e5), (99, -math.inf)))

    target = ScriptedTarget(lambda _: [(120,), (END,)], logprobs=never)
    async with scripted(target) as gateway:
        plain = (await gateway.post(PATH, HELLO | {"logprobs": 3})).json()["choices"][0]
        chat = (await gateway.post(CHAT, CHAT_HELLO | {"top_logprobs": 3})).json()["choices"][0]
    assert plain["logprobs"]["token_logprobs"] == [-9999.0]
    assert plain["logprobs"]["top_logprobs"] == [
        {"a": 0.0, "b": -9999.0, "c": -9999.0, "x": -9999.0}
    ]
    assert chat["logprobs"]["content"][0]["logprob"] == -9999.0
    assert [top["logprob"] for top in chat["logprobs"]["content"][0]["top_logprobs"]] == [
        0.0,
        -9999.0,
        -9999.0,
    ]


async def test_of_ids_with_one_string_a_plain_completion_tells_the_likeliest() -> None:
    def twins(token_id: int, position: int, count: int) -> TokenLogprobs:
        return TokenLogprobs(token_id, -4.0, ((0xC3, -0.5), (0xC4, -1.0), (97, -2.0)))

    target = ScriptedTarget(lambda _: [(0xE2,), (END,)], logprobs=twins)
    async with scripted(target) as gateway:
        body = (await gateway.post(PATH, HELLO | {"logprobs": 3})).json()
    assert body["choices"][0]["logprobs"]["top_logprobs"] == [{"\ufffd": -0.5, "a": -2.0}]


@pytest.mark.parametrize("path", [PATH, CHAT])
async def test_a_line_break_of_any_kind_in_a_token_keeps_the_event_one_line(path: str) -> None:
    lines = ScriptedTarget(lambda _: [tuple("\u2028\x85\n".encode()), (END,)])
    async with scripted(lines) as gateway:
        response = await gateway.post(path, ASKED[path] | {"stream": True})
    payloads = [part for part in response.text.split("\n\n") if part.startswith("data: {")]
    assert all(len(payload.splitlines()) == 1 for payload in payloads)
    spoken = json.loads(payloads[0].removeprefix("data: "))["choices"][0]["logprobs"]
    assert len(spoken.get("tokens") or spoken["content"]) == 6


@pytest.mark.parametrize(("tokens", "threads"), [(10, 0), (4000, 1)])
async def test_a_whole_response_of_very_many_is_written_beside_the_loop(
    tokens: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_thread, calls = asyncio.to_thread, 0

    async def counted(work: Any) -> Any:
        nonlocal calls
        calls += 1
        return await to_thread(work)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    async with scripted(saying("x" * tokens, chunk=500)) as gateway:
        body = (await gateway.post(PATH, HELLO | {"max_tokens": tokens})).json()
    assert len(body["choices"][0]["logprobs"]["tokens"]) == tokens
    assert calls == threads


async def test_a_target_that_tells_nothing_fails_the_request() -> None:
    target = ScriptedTarget(lambda _: [tuple(b"ab"), (END,)], logprobs=None)
    async with scripted(target) as gateway:
        response = await gateway.post(PATH, HELLO)
        assert gateway.at_rest()
    assert response.status_code == 502
    assert "0 log probabilities of 2 tokens" in response.json()["error"]["message"]


def test_a_token_without_bytes_is_told_of_by_its_text_alone() -> None:
    chat = LogprobsWriter(IdTokenizer(9), True).write([TokenLogprobs(5, -1.0, ((6, -2.0),))], [0])
    (entry,) = chat.content  # type: ignore[union-attr]
    assert (entry.token, entry.bytes) == ("5", None)
    assert (entry.top_logprobs[0].token, entry.top_logprobs[0].bytes) == ("6", None)


def test_an_id_beyond_the_vocabulary_is_told_of_without_text() -> None:
    assert BYTE_MODEL.tokenizer_json is not None
    writer = LogprobsWriter(HFTokenizer(BYTE_MODEL.tokenizer_json), False)
    plain = writer.write([TokenLogprobs(999, -1.0)], [0])
    assert plain.tokens == [""]  # type: ignore[union-attr]
