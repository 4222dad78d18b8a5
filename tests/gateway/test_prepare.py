"""What is refused, with which status, naming which field, value and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Serving
from .serving import ScriptedTarget, scripted

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
CHAT = "/v1/chat/completions"
COMPLETION = {"model": "bytes", "prompt": "Hi"}
MESSAGES = [{"role": "user", "content": "Hi"}]
IMAGE = [{"type": "image_url", "image_url": {"url": "data:,"}}]


def silent() -> ScriptedTarget:
    return ScriptedTarget(lambda _: [(256,)])


def deep(levels: int) -> bytes:
    return b'{"model": "bytes", "prompt": "", "metadata": ' + b"[" * levels + b"]" * levels + b"}"


BODIES = [
    (b"{", 400, None, "invalid_json", "not valid JSON"),
    (b'{"prompt": "", "temperature": 1e999}', 400, "temperature", "invalid_type", "out of range"),
    (deep(100_000), 400, None, "invalid_json", "nested too deeply"),
    (b"[]", 400, None, "invalid_type", "must be a JSON object"),
    (b"{}", 400, "model", "missing_field", "model is missing"),
    (b'{"model": "bytes"}', 400, "prompt", "missing_field", "prompt is missing"),
]


@pytest.mark.parametrize(("body", "status", "param", "code", "words"), BODIES)
async def test_a_body_that_is_no_request_is_refused_with_its_reason(
    body: bytes, status: int, param: str | None, code: str, words: str
) -> None:
    async with scripted(silent()) as gateway:
        headers = {"Content-Type": "application/json"}
        response = await gateway.client.post(PATH, content=body, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


FIELDS: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    ({"zoo": 1}, "zoo", ("zoo is not a field", "leave it out")),
    ({"speculation": {"enable": True}}, "speculation.enable", ("not a field",)),
    ({"speculation": {"drafter": "gpt"}}, "speculation.drafter", ("'gpt'", "known are")),
    ({"speculation": {"enabled": False, "drafter": "gpt"}}, "speculation.drafter", ("'gpt'",)),
    ({"speculation": {"max_lookahead": -1}}, "speculation.max_lookahead", ("-1", "use 0")),
    ({"speculation": {"max_lookahead": 1.5}}, "speculation.max_lookahead", ("1.5", "int")),
    ({"speculation": True}, "speculation", ("true", "object")),
    ({"speculation": {"enabled": "yes"}}, "speculation.enabled", ('"yes"', "bool")),
    ({"temperature": "hot"}, "temperature", ('"hot"', "float")),
    ({"temperature": -0.1}, "temperature", ("-0.1", "[0, 100]")),
    ({"temperature": 101}, "temperature", ("101", "[0, 100]")),
    ({"top_p": 0}, "top_p", ("0", "(0, 1]")),
    ({"top_p": 1.1}, "top_p", ("1.1",)),
    ({"min_p": 2}, "min_p", ("2", "[0, 1]")),
    ({"top_k": -2}, "top_k", ("-2", "0 or -1")),
    ({"n": 0}, "n", ("0", "1..16")),
    ({"n": 17}, "n", ("17", "1..16", "limits.max_choices")),
    ({"seed": 2**64}, "seed", (str(2**64), "64 bits")),
    ({"seed": 1.5}, "seed", ("1.5", "int")),
    ({"stop": ""}, "stop", ("empty", "leave it out")),
    ({"stop": ["a"] * 17}, "stop", ("17", "16")),
    ({"stop": ["a", 5]}, "stop[1]", ("5", "str")),
    ({"stop": "x" * 1025}, "stop", ("1025", "1024")),
    ({"stop_token_ids": [257]}, "stop_token_ids", ("257", "0..256")),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]", ('"a"', "int")),
    ({"stream": "yes"}, "stream", ('"yes"', "bool")),
    ({"stream_options": {"include_usage": True}}, "stream_options", ("stream is not true",)),
    ({"max_tokens": 0}, "max_tokens", ("0", "at least 1")),
    ({"max_tokens": 1.5}, "max_tokens", ("1.5", "int")),
    ({"max_tokens": 10**6}, "max_tokens", ("1000000", "context is 4096")),
    ({"logit_bias": {"5": -101}}, "logit_bias", ("logit_bias[5] is -101", "[-100, 100]")),
    ({"logit_bias": {"257": 1}}, "logit_bias", ("257", "0..256")),
    ({"logit_bias": {"the": 1}}, "logit_bias", ("'the'", "token ids in decimal")),
    ({"logit_bias": {"-1": 1}}, "logit_bias", ("'-1'", "token ids in decimal")),
    ({"logit_bias": {"05": 1}}, "logit_bias", ("'05'", "token ids in decimal")),
    ({"logit_bias": {"": 1}}, "logit_bias", ("''", "token ids in decimal")),
    ({"logit_bias": {"9" * 99: 1}}, "logit_bias", ("'999", "token ids in decimal")),
    ({"logit_bias": [1]}, "logit_bias", ("[1]", "object")),
    ({"logit_bias": {"5": "high"}}, "logit_bias", ('{"5":"high"}', "float")),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", ("1025", "1024")),
    ({"presence_penalty": 2.5}, "presence_penalty", ("2.5", "[-2, 2]")),
    ({"presence_penalty": "high"}, "presence_penalty", ('"high"', "float")),
    ({"frequency_penalty": -3}, "frequency_penalty", ("-3", "[-2, 2]")),
    ({"repetition_penalty": 0}, "repetition_penalty", ("0", "[0.01, 10]")),
    ({"repetition_penalty": 10.5}, "repetition_penalty", ("10.5", "[0.01, 10]")),
    ({"min_tokens": -1}, "min_tokens", ("-1", "use 0")),
    ({"min_tokens": 300}, "min_tokens", ("300", "the 256 of max_tokens")),
    ({"min_tokens": 1.5}, "min_tokens", ("1.5", "int")),
    ({"allowed_token_ids": []}, "allowed_token_ids", ("empty", "at least one")),
    ({"allowed_token_ids": [3, 257]}, "allowed_token_ids", ("257", "0..256")),
    ({"allowed_token_ids": [-1, 3]}, "allowed_token_ids", ("-1", "0..256")),
    ({"allowed_token_ids": [3, "a"]}, "allowed_token_ids[1]", ('"a"', "int")),
    ({"allowed_token_ids": 3}, "allowed_token_ids", ("3", "array")),
    ({"bad_words": ["a", ""]}, "bad_words[1]", ("''", "leave it out")),
    ({"bad_words": [" "]}, "bad_words[0]", ("' '", "leave it out")),
    ({"bad_words": ["a", 5]}, "bad_words[1]", ("5", "str")),
    ({"bad_words": "a"}, "bad_words", ('"a"', "array")),
    ({"bad_words": ["x"] * 257}, "bad_words", ("257", "256")),
    ({"bad_words": ["x" * 257]}, "bad_words[0]", ("257", "256")),
    ({"logprobs_mode": "cooked"}, "logprobs_mode", ("'cooked'", "raw or processed")),
    ({"logprobs_mode": 1}, "logprobs_mode", ("1", "str")),
    (
        {"speculation": {"verification": "greedy"}},
        "speculation.verification",
        ("'greedy'", "matching or token or block"),
    ),
    ({"speculation": {"verification": "block"}, "seed": 1}, "speculation.verification", ("block",)),
    ({"speculation": {"verification": 1}}, "speculation.verification", ("1", "str")),
    ({"include_stop_str_in_output": True}, "include_stop_str_in_output", ("true",)),
    ({"prediction": "x"}, "prediction", ('"x"', "object")),
    ({"prediction": {"content": "x"}}, "prediction.type", ("missing",)),
    ({"prediction": {"type": "text", "content": "x"}}, "prediction.type", ("'text'", "'content'")),
    ({"prediction": {"type": "content"}}, "prediction.content", ("missing",)),
    ({"prediction": {"type": "content", "content": 5}}, "prediction.content", ("5", "str")),
    (
        {"prediction": {"type": "content", "content": [{"type": "image_url"}]}},
        "prediction.content[0].type",
        ("'image_url'", "'text'"),
    ),
    (
        {"prediction": {"type": "content", "content": "x" * 4097}},
        "prediction",
        ("4097 tokens", "4096"),
    ),
    ({"response_format": {"type": "json_object"}}, "response_format", ("json_object", "text")),
]

COMPLETION_FIELDS: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    ({"logprobs": -1}, "logprobs", ("-1", "0..20")),
    ({"logprobs": 21}, "logprobs", ("21", "0..20", "limits.max_logprobs")),
    ({"logprobs": True}, "logprobs", ("true", "int")),
    ({"top_logprobs": 2}, "top_logprobs", ("not a field",)),
    ({"best_of": 2}, "best_of", ("2",)),
    ({"n": 2, "best_of": 3}, "best_of", ("3",)),
    ({"echo": True}, "echo", ("true",)),
    ({"suffix": "x"}, "suffix", ('"x"',)),
    ({"prompt": ""}, "prompt", ("empty",)),
    ({"prompt": []}, "prompt", ("empty",)),
    ({"prompt": [[]]}, "prompt", ("empty",)),
    ({"prompt": ["a", 1]}, "prompt", ("mixes",)),
    ({"prompt": [1, 300]}, "prompt", ("300", "0..256")),
    ({"prompt": [-1]}, "prompt", ("-1", "0..256")),
    ({"prompt": [True]}, "prompt[0]", ("true",)),
    ({"prompt": [[1], [2.5]]}, "prompt[1][0]", ("2.5",)),
    ({"prompt": ["a"] * 17}, "prompt", ("17", "16")),
    ({"prompt": "x" * 4096}, "prompt", ("4096 tokens", "context is 4096")),
    ({"prompt": None}, "prompt", ("null",)),
]

CHAT_FIELDS: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    ({"messages": []}, "messages", ("empty",)),
    ({"messages": [{"role": 1, "content": ""}]}, "messages[0].role", ("1", "str")),
    ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role", ("'robot'", "user")),
    ({"messages": [{"content": "x"}]}, "messages[0].role", ("missing",)),
    ({"messages": [{"role": "user"}]}, "messages[0].content", ("missing",)),
    (
        {"messages": [*MESSAGES, {"role": "user", "content": IMAGE}]},
        "messages[1].content[0].type",
        ("'image_url'", "'text'"),
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]", ()),
    (
        {"messages": [{"role": "user", "content": [], "zoo": 1}]},
        "messages[0].zoo",
        ("not a field",),
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
        "messages[0].tool_calls",
        ("[{}]",),
    ),
    ({"messages": [{"role": "user", "content": "x" * 4096}]}, "messages", ("context is 4096",)),
    ({"logprobs": 1}, "logprobs", ("1", "bool")),
    ({"top_logprobs": 2}, "top_logprobs", ("2", "logprobs is not true", "set logprobs to true")),
    ({"logprobs": False, "top_logprobs": 2}, "top_logprobs", ("2", "logprobs is not true")),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", ("21", "limits.max_logprobs")),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", ("-1", "0..20")),
    ({"tools": [{"type": "function"}]}, "tools", ("does not support", "[]")),
    ({"tool_choice": "required"}, "tool_choice", ('"required"',)),
    ({"functions": [{}]}, "functions", ("[{}]",)),
    ({"modalities": ["text", "audio"]}, "modalities", ('["text","audio"]',)),
    ({"reasoning_effort": "high"}, "reasoning_effort", ('"high"',)),
    ({"store": True}, "store", ("true",)),
    ({"max_completion_tokens": 0}, "max_completion_tokens", ("0",)),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", ("send one",)),
]


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        *((PATH, *case) for case in FIELDS + COMPLETION_FIELDS),
        *((CHAT, *case) for case in FIELDS + CHAT_FIELDS if case[1] != "max_tokens"),
    ],
)
async def test_a_field_that_cannot_be_honoured_is_refused_by_name_and_value(
    path: str, fields: dict[str, Any], param: str, words: tuple[str, ...]
) -> None:
    base = COMPLETION if path == PATH else {"model": "bytes", "messages": MESSAGES}
    target = silent()
    async with scripted(target) as gateway:
        response = await gateway.post(path, base | fields)
        assert gateway.at_rest()
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    for word in words:
        assert word in error["message"]
    assert "\n" not in error["message"]
    assert target.opened == []


NEUTRAL: dict[str, Any] = {
    "n": None,
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "bad_words": [],
    "allowed_token_ids": None,
    "logprobs": None,
    "logprobs_mode": "raw",
    "min_tokens": 0,
    "include_stop_str_in_output": False,
    "prediction": None,
    "response_format": {"type": "text"},
    "stop": [],
    "stop_token_ids": [],
    "top_k": -1,
    "user": "somebody",
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "speculation": None,
    "stream_options": None,
}


async def test_neutral_values_and_fields_without_effect_are_taken() -> None:
    async with scripted(silent()) as gateway:
        plain = {"best_of": 1, "echo": False, "suffix": None, "logprobs": None}
        response = await gateway.post(PATH, COMPLETION | NEUTRAL | plain)
        assert response.status_code == 200, response.text
        response = await gateway.post(PATH, COMPLETION | {"n": 2, "best_of": 2})
        assert response.status_code == 200, response.text
        chat = {
            "logprobs": False,
            "top_logprobs": 0,
            "tools": [],
            "tool_choice": "auto",
            "functions": [],
            "modalities": ["text"],
            "audio": None,
            "store": False,
            "parallel_tool_calls": True,
            "max_tokens": 3,
            "max_completion_tokens": 3,
        }
        body = {"model": "bytes", "messages": MESSAGES} | NEUTRAL | chat
        response = await gateway.post(CHAT, body)
        assert response.status_code == 200, response.text


async def test_an_answer_may_be_sent_back_as_it_came() -> None:
    async with scripted(silent()) as gateway:
        first = (await gateway.post(CHAT, {"model": "bytes", "messages": MESSAGES})).json()
        history = [*MESSAGES, first["choices"][0]["message"], *MESSAGES]
        response = await gateway.post(CHAT, {"model": "bytes", "messages": history})
    assert response.status_code == 200, response.text


async def test_an_unknown_model_is_404_and_names_the_one_served() -> None:
    async with scripted(silent()) as gateway:
        response = await gateway.post(PATH, COMPLETION | {"model": "gpt-9"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "'gpt-9'" in error["message"]
    assert "'bytes'" in error["message"]


async def test_a_context_that_is_exceeded_has_its_own_code() -> None:
    async with scripted(silent()) as gateway:
        response = await gateway.post(PATH, COMPLETION | {"max_tokens": 10**6})
    assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_what_is_not_supported_has_its_own_code() -> None:
    async with scripted(silent()) as gateway:
        response = await gateway.post(PATH, COMPLETION | {"echo": True})
    assert response.json()["error"]["code"] == "unsupported_value"


async def test_a_model_without_a_chat_form_points_to_plain_completions(
    table_gateway: Serving,
) -> None:
    async with table_gateway() as gateway:
        response = await gateway.post(CHAT, {"model": "target", "messages": MESSAGES})
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == "no_chat_template"


async def test_text_that_cannot_be_encoded_names_the_prompt(table_gateway: Serving) -> None:
    async with table_gateway() as gateway:
        response = await gateway.post(PATH, {"model": "target", "prompt": "1 2 x"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert "'x'" in response.json()["error"]["message"]
