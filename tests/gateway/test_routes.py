"""Everything beside the completions, and the form of every answer."""

from __future__ import annotations

from typing import Any

import pytest

from outrider import __version__
from outrider.targets import CacheUse

from .conftest import Serving
from .serving import ScriptedTarget, scripted

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
HELLO = {"model": "bytes", "prompt": "Hi"}


def silent() -> ScriptedTarget:
    return ScriptedTarget(lambda _: [(256,)])


async def test_the_model_is_listed_and_found_by_name() -> None:
    async with scripted(silent()) as gateway:
        listed = (await gateway.client.get("/v1/models")).json()
        found = (await gateway.client.get("/v1/models/bytes")).json()
        missing = await gateway.client.get("/v1/models/some/other")
    assert listed == {"object": "list", "data": [found]}
    assert found["id"] == "bytes"
    assert found["object"] == "model"
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_probes_and_version_answer() -> None:
    async with scripted(silent()) as gateway:
        assert (await gateway.client.get("/health")).json() == {"status": "ok"}
        assert (await gateway.client.get("/ready")).json() == {"status": "ready"}
        assert (await gateway.client.get("/version")).json() == {"version": __version__}
        hint = await gateway.client.get("/")
    assert "curl" in hint.text
    assert '"model": "bytes"' in hint.text


async def test_text_goes_to_tokens_and_back() -> None:
    async with scripted(silent()) as gateway:
        tokens = (await gateway.post("/tokenize", {"prompt": "Hé"})).json()
        text = (await gateway.post("/detokenize", {"tokens": tokens["tokens"]})).json()
        chat = {"messages": [{"role": "user", "content": "x"}]}
        templated = (await gateway.post("/tokenize", chat)).json()
    assert tokens == {"count": 3, "max_model_len": 4096, "tokens": list("Hé".encode())}
    assert text == {"prompt": "Hé"}
    assert bytes(templated["tokens"]) == b"user: x\nassistant:"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {}, "prompt is missing"),
        ("/tokenize", {"prompt": "a", "messages": []}, "send one"),
        ("/tokenize", {"prompt": "a", "model": "x"}, "'x'"),
        ("/detokenize", {"tokens": [257]}, "257"),
        ("/detokenize", {"tokens": "a"}, '"a"'),
    ],
)
async def test_what_cannot_be_tokenized_is_refused(path: str, body: Any, words: str) -> None:
    async with scripted(silent()) as gateway:
        response = await gateway.post(path, body)
    assert response.status_code in (400, 404)
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/%1b%5b31m", 404, "not_found"),
    ],
)
async def test_a_path_or_method_that_is_not_served_has_the_same_form(
    method: str, path: str, status: int, code: str
) -> None:
    async with scripted(silent()) as gateway:
        response = await gateway.client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert response.json()["error"]["code"] == code
    assert response.headers["x-request-id"]
    assert "\x1b" not in response.text


async def test_metrics_count_requests_and_tell_the_slots(table_gateway: Serving) -> None:
    async with table_gateway() as gateway:
        await gateway.post(PATH, {"model": "target", "prompt": [0], "max_tokens": 9})
        await gateway.post(PATH, {"model": "target", "prompt": [77]})
        await gateway.client.get("/v1/who/are/you")
        response = await gateway.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    lines = response.text.splitlines()
    assert 'outrider_requests_total{endpoint="/v1/completions",status="200"} 1.0' in lines
    assert 'outrider_requests_total{endpoint="/v1/completions",status="400"} 1.0' in lines
    assert 'outrider_requests_total{endpoint="other",status="404"} 1.0' in lines
    assert "outrider_output_tokens_total 9.0" in lines
    assert "outrider_slots_used 0.0" in lines
    assert "outrider_slots_total 32.0" in lines
    assert any(
        line.startswith('spec_decode_num_drafts_total{drafter="table:draft"}') for line in lines
    )


async def test_metrics_tell_the_memory_of_a_target_that_has_some(table_gateway: Serving) -> None:
    use = CacheUse(tokens=100, budget_bytes=1000, used_bytes=300, retained_bytes=200)
    async with scripted(ScriptedTarget(lambda _: [], cache_use=use)) as gateway:
        lines = (await gateway.client.get("/metrics")).text.splitlines()
    assert "outrider_kv_cache_budget_bytes 1000.0" in lines
    assert "outrider_kv_cache_used_bytes 300.0" in lines
    assert "outrider_kv_cache_retained_bytes 200.0" in lines
    async with table_gateway() as gateway:
        assert "kv_cache" not in (await gateway.client.get("/metrics")).text


@pytest.mark.parametrize("stream", [False, True])
async def test_every_completion_carries_its_request_id(stream: bool) -> None:
    async with scripted(silent()) as gateway:
        headers = {"X-Request-Id": "mine"}
        response = await gateway.post(PATH, HELLO | {"stream": stream}, headers=headers)
    assert response.status_code == 200
    assert response.headers["x-request-id"] == "mine"


async def test_a_body_above_the_limit_is_refused_with_the_settings_name() -> None:
    async with scripted(silent(), limits={"max_body_bytes": 1024}) as gateway:
        for path in (PATH, "/tokenize"):
            response = await gateway.post(path, {"prompt": "x" * 1024})
            assert response.status_code == 413
            assert "1024 bytes are taken (limits.max_body_bytes)" in response.text


@pytest.mark.parametrize("draft", ["suffix", "mixed:suffix+ngram"])
async def test_the_memory_of_earlier_outputs_is_told(table_gateway: Serving, draft: str) -> None:
    async with table_gateway(drafts=(draft,)) as gateway:
        body = {"model": "target", "prompt": [1, 2], "max_tokens": 40, "ignore_eos": True}
        assert "outrider_suffix_cache_bytes 0.0" in (await gateway.client.get("/metrics")).text
        assert (await gateway.post("/v1/completions", body)).status_code == 200
        told = (await gateway.client.get("/metrics")).text
        line = next(line for line in told.splitlines() if line.startswith("outrider_suffix_cache"))
        assert float(line.split()[1]) == gateway.pipeline.suffix_cache_bytes() > 0


async def test_without_a_drafter_that_keeps_outputs_there_is_no_such_gauge(
    table_gateway: Serving,
) -> None:
    async with table_gateway(drafts=("ngram",)) as gateway:
        assert "suffix_cache" not in (await gateway.client.get("/metrics")).text
