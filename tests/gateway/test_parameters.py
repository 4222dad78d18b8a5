"""What of a request reaches the target."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from outrider.types import LogprobsMode, SamplingParams, VerificationMethod

from .conftest import Serving
from .serving import END, ScriptedTarget, scripted

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
CHAT = "/v1/chat/completions"
BASE: dict[str, dict[str, Any]] = {
    PATH: {"model": "bytes", "prompt": "Hi"},
    CHAT: {"model": "bytes", "messages": [{"role": "user", "content": "Hi"}]},
}


def silent() -> ScriptedTarget:
    return ScriptedTarget(lambda _: [(END,)])


async def sampling_of(path: str, fields: dict[str, Any]) -> SamplingParams:
    """The parameters with which the target opens a session for a request."""
    target = silent()
    async with scripted(target) as gateway:
        response = await gateway.post(path, BASE[path] | fields)
    assert response.status_code == 200, response.text
    return target.opened[0].sampling


HONOURED: list[tuple[dict[str, Any], str, Any]] = [
    ({"temperature": 0.5}, "temperature", 0.5),
    ({"top_p": 0.25}, "top_p", 0.25),
    ({"top_k": 7}, "top_k", 7),
    ({"top_k": -1}, "top_k", 0),
    ({"min_p": 0.125}, "min_p", 0.125),
    ({"repetition_penalty": 1.5}, "repetition_penalty", 1.5),
    ({"presence_penalty": -2}, "presence_penalty", -2.0),
    ({"frequency_penalty": 1.25}, "frequency_penalty", 1.25),
    ({"logit_bias": {"0": -100, "256": 2.5}}, "logit_bias", {0: -100.0, 256: 2.5}),
    ({"allowed_token_ids": [3, 1, 3]}, "allowed_token_ids", frozenset({1, 3})),
    ({"min_tokens": 256}, "min_tokens", 256),
    ({"min_tokens": 5, "max_tokens": 5}, "min_tokens", 5),
    ({"seed": 7}, "seed", 7),
    ({"stop_token_ids": [3]}, "stop_token_ids", frozenset({3})),
    ({"ignore_eos": True}, "ignore_eos", True),
    ({"logprobs_mode": "processed"}, "logprobs_mode", LogprobsMode.PROCESSED),
    ({"logprobs_mode": "raw"}, "logprobs_mode", LogprobsMode.RAW),
]


@pytest.mark.parametrize("path", [PATH, CHAT])
@pytest.mark.parametrize(("fields", "name", "value"), HONOURED)
async def test_a_field_reaches_the_target(
    path: str, fields: dict[str, Any], name: str, value: Any
) -> None:
    assert getattr(await sampling_of(path, fields), name) == value


@pytest.mark.parametrize("path", [PATH, CHAT])
async def test_a_request_without_fields_asks_for_the_defaults(path: str) -> None:
    assert await sampling_of(path, {}) == SamplingParams()


@pytest.mark.parametrize(
    ("path", "fields", "count"),
    [
        (PATH, {"logprobs": None}, None),
        (PATH, {"logprobs": 0}, 0),
        (PATH, {"logprobs": 20}, 20),
        (CHAT, {"logprobs": False}, None),
        (CHAT, {"logprobs": False, "top_logprobs": 0}, None),
        (CHAT, {"logprobs": True}, 0),
        (CHAT, {"logprobs": True, "top_logprobs": None}, 0),
        (CHAT, {"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
async def test_log_probabilities_are_asked_for_as_each_api_spells_it(
    path: str, fields: dict[str, Any], count: int | None
) -> None:
    assert (await sampling_of(path, fields)).logprobs == count


async def test_the_server_bounds_the_number_of_likely_tokens() -> None:
    async with scripted(silent(), limits={"max_logprobs": 3}) as gateway:
        fine = await gateway.post(PATH, BASE[PATH] | {"logprobs": 3})
        refused = await gateway.post(PATH, BASE[PATH] | {"logprobs": 4})
    assert fine.status_code == 200
    assert "0..3 (limits.max_logprobs)" in refused.json()["error"]["message"]


async def test_the_server_bounds_the_log_probabilities_of_all_choices_together() -> None:
    asked = BASE[PATH] | {"logprobs": 4, "n": 2, "max_tokens": 10}
    async with scripted(silent(), limits={"max_logprob_entries": 100}) as gateway:
        assert (await gateway.post(PATH, asked)).status_code == 200
        refused = await gateway.post(PATH, asked | {"n": 3})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "logprobs"
    assert "up to 150 entries" in refused.json()["error"]["message"]


async def test_very_many_biases_are_refused_before_they_are_read() -> None:
    asked = BASE[PATH] | {"logit_bias": {f"no id {index}": 0 for index in range(2000)}}
    async with scripted(silent()) as gateway:
        refused = await gateway.post(PATH, asked)
    assert refused.status_code == 400
    assert "logit_bias has 2000 entries" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("words", "sequences"),
    [
        ([], ()),
        (["ab"], (b"ab", b" ab")),
        ([" ab"], (b"ab", b" ab")),
        (["ab", "ab", " ab"], (b"ab", b" ab")),
        (["\n", "é"], (b"\n", b" \n", "é".encode(), " é".encode())),
    ],
)
async def test_a_bad_word_is_kept_out_with_and_without_a_space_in_front(
    words: list[str], sequences: tuple[bytes, ...]
) -> None:
    found = (await sampling_of(PATH, {"bad_words": words})).bad_words
    assert found == tuple(tuple(sequence) for sequence in sequences)


async def test_a_bad_word_that_cannot_be_encoded_is_refused(table_gateway: Serving) -> None:
    async with table_gateway() as gateway:
        request = {"model": "target", "prompt": [0], "bad_words": ["1", "two"]}
        error = (await gateway.post(PATH, request)).json()["error"]
    assert error["param"] == "bad_words"
    assert "'two'" in error["message"]


async def test_many_bad_words_are_encoded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    to_thread, calls = asyncio.to_thread, 0

    async def counted(work: Any) -> Any:
        nonlocal calls
        calls += 1
        return await to_thread(work)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    assert len((await sampling_of(PATH, {"bad_words": ["a", "b"]})).bad_words) == 4
    assert calls == 0
    words = [f"{number} {'x' * 8}" for number in range(256)]
    assert len((await sampling_of(PATH, {"bad_words": words})).bad_words) == 512
    assert calls == 1


async def test_every_prompt_gets_the_same_parameters_but_its_own_budget() -> None:
    target = silent()
    async with scripted(target) as gateway:
        fields = {"prompt": [[65], [65] * 4090], "logit_bias": {"1": 3}, "bad_words": ["x"]}
        await gateway.post(PATH, BASE[PATH] | fields)
    first, second = (opened.sampling for opened in target.opened)
    assert (first.max_tokens, second.max_tokens) == (256, 6)
    assert first == replace(second, max_tokens=256)
    assert (first.logit_bias, len(first.bad_words)) == ({1: 3.0}, 2)


async def test_more_tokens_at_least_than_a_default_budget_are_refused_by_name() -> None:
    async with scripted(silent(), limits={"default_max_tokens": 7}) as gateway:
        response = await gateway.post(CHAT, BASE[CHAT] | {"min_tokens": 8})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "min_tokens")
    assert "8, above the 7 of max_tokens" in error["message"]


@pytest.mark.parametrize("path", [PATH, CHAT])
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (None, None),
        ("matching", VerificationMethod.MATCHING),
        ("token", VerificationMethod.TOKEN),
        ("block", VerificationMethod.BLOCK),
    ],
)
async def test_the_way_to_judge_drafts_reaches_the_pipeline(
    path: str,
    asked: str | None,
    given: VerificationMethod | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[VerificationMethod | None] = []
    async with scripted(silent()) as gateway:
        real = gateway.pipeline.session

        def session(*args: Any, verification: VerificationMethod | None, **rest: Any) -> Any:
            seen.append(verification)
            return real(*args, **rest)

        monkeypatch.setattr(gateway.pipeline, "session", session)
        fields = {"speculation": {"verification": asked}}
        response = await gateway.post(path, BASE[path] | fields)
    assert response.status_code == 200, response.text
    assert seen == [given]
