"""`speculation.trace`: an answer tells of its rounds."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.anyio

BODY = {"prompt": [1, 2], "max_tokens": 24, "temperature": 0, "ignore_eos": True}


async def answered(gateway, **extra) -> dict:
    body = {"model": gateway.pipeline.info.model_id, **BODY, **extra}
    response = await gateway.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_an_answer_tells_of_its_rounds_if_asked(table_gateway) -> None:
    async with table_gateway() as gateway:
        told = (await answered(gateway, speculation={"trace": True}))["speculation"]
        trace = told["trace"]
        assert sum(each["drafted"] for each in trace) == told["drafted_tokens"]
        assert sum(each["accepted"] for each in trace) == told["accepted_tokens"]
        assert sum(each["tokens"] for each in trace) == BODY["max_tokens"]
        assert trace[0] == {
            "choice": 0,
            "position": 0,
            "lookahead": 0,
            "drafted": 0,
            "accepted": 0,
            "tokens": 1,
            "source": None,
            "why": "first token",
            "expected_plain": None,
            "expected": None,
        }
        assert {each["why"] for each in trace[1:-1]} == {"fixed"}
        assert trace[1]["source"] == "table:draft"


async def test_an_answer_says_nothing_of_rounds_unless_asked(table_gateway) -> None:
    async with table_gateway() as gateway:
        assert "trace" not in (await answered(gateway))["speculation"]


async def test_the_last_chunk_of_a_stream_tells_of_the_rounds(table_gateway) -> None:
    async with table_gateway() as gateway:
        body = {"model": gateway.pipeline.info.model_id, **BODY, "speculation": {"trace": True}}
        events = await gateway.events("/v1/completions", body)
        assert len(events[-2]["speculation"]["trace"]) > 2


async def test_the_rounds_told_of_are_bounded_for_all_choices_together(table_gateway) -> None:
    async with table_gateway() as gateway:
        extra = {"n": 2, "max_tokens": 700, "speculation": {"trace": True, "max_lookahead": 1}}
        trace = (await answered(gateway, temperature=1.0, seed=1, **extra))["speculation"]["trace"]
        counts = [sum(each["choice"] == choice for each in trace) for choice in (0, 1)]
        assert max(counts) == 256
        assert sum(counts) <= 512
        assert len(json.dumps(trace)) < 150_000


async def test_a_plainly_decoded_answer_is_one_round_with_its_reason(table_gateway) -> None:
    async with table_gateway() as gateway:
        told = await answered(gateway, speculation={"trace": True, "enabled": False})
        assert [each["why"] for each in told["speculation"]["trace"]] == ["no room"]


async def test_a_trace_that_is_no_boolean_is_refused(table_gateway) -> None:
    async with table_gateway() as gateway:
        body = {"model": gateway.pipeline.info.model_id, **BODY, "speculation": {"trace": 3}}
        assert (await gateway.post("/v1/completions", body)).status_code == 400
