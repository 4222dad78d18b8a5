"""Predicted outputs over the API, with OpenAI's own client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from outrider.config import Settings
from outrider.drafters import NgramDrafter
from outrider.metrics import Metrics
from outrider.pipeline import Pipeline
from outrider.types import Draft, FinishReason, Verification

from .serving import BYTE_MODEL, END, Gateway, ScriptedTarget, running

pytestmark = pytest.mark.anyio

TEXT = (
    "def area(width, height):\n    return width * height\n\n\n"
    "def volume(width, height, depth):\n    return area(width, height) * depth\n"
)
MESSAGES = [{"role": "user", "content": "Write it."}]


class Reciting(ScriptedTarget):
    """Says `TEXT` to everybody, and judges drafts by it as a target does."""

    def __init__(self) -> None:
        super().__init__(lambda _: [])
        self.drafts: list[Draft] = []

    async def advance(
        self, session_id: str, round_id: int, position: int, draft: Draft, run: int
    ) -> AsyncGenerator[Verification]:
        most = self.open_sessions[session_id].sampling.max_tokens
        text = (*TEXT.encode(), END)[:most]
        self.drafts.append(draft)
        for step in range(run + 1):
            drafted = draft.token_ids if step == 0 else ()
            accepted = 0
            while accepted < len(drafted) and drafted[accepted] == text[position + accepted]:
                accepted += 1
            tokens = text[position : position + accepted + 1]
            position += len(tokens)
            finish = None
            if position == len(text):
                finish = FinishReason.STOP if tokens[-1] == END else FinishReason.LENGTH
            yield Verification(
                round_id, position - len(tokens), tokens, len(drafted), accepted, finish
            )
            if finish is not None:
                return


@asynccontextmanager
async def reciting(**speculation: object) -> AsyncIterator[tuple[Gateway, openai.AsyncOpenAI]]:
    settings = Settings(speculation={"controller": "fixed", "lookahead": 8} | speculation)
    drafter = NgramDrafter()
    drafters = {"ngram": (drafter, await drafter.describe())}
    pipeline = Pipeline(Reciting(), BYTE_MODEL, drafters, settings, Metrics())
    async with (
        running(pipeline, settings) as gateway,
        openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1",
            api_key="x",
            max_retries=0,
            _strict_response_validation=True,
        ) as client,
    ):
        yield gateway, client


async def ask(client: openai.AsyncOpenAI, prediction, **fields):
    reply = await client.chat.completions.create(
        model="bytes",
        messages=MESSAGES,
        temperature=0,
        prediction={"type": "content", "content": prediction},
        **fields,
    )
    return reply, reply.usage.completion_tokens_details


async def test_a_right_prediction_is_told_as_accepted() -> None:
    async with reciting() as (_, client):
        reply, details = await ask(client, TEXT)
    assert reply.choices[0].message.content == TEXT
    assert details.accepted_prediction_tokens > 0.8 * len(TEXT)
    assert details.rejected_prediction_tokens <= 8
    assert reply.usage.completion_tokens == len(TEXT) + 1
    assert reply.model_extra["speculation"]["rounds"] < len(TEXT) / 5


async def test_an_edited_prediction_is_accepted_but_for_its_edits() -> None:
    edited = TEXT.replace("area", "size").replace("depth)", "length)")
    async with reciting() as (_, client):
        reply, details = await ask(client, edited)
        _, right = await ask(client, TEXT)
    assert reply.choices[0].message.content == TEXT
    assert 0.4 * len(TEXT) < details.accepted_prediction_tokens < right.accepted_prediction_tokens
    assert details.rejected_prediction_tokens > 0


@pytest.mark.parametrize("prediction", ["", "?", "zzz" * 1000, [], "def " * 1000])
async def test_the_output_is_the_same_with_a_useless_prediction(prediction) -> None:
    async with reciting() as (_, client):
        reply, details = await ask(client, prediction)
    assert reply.choices[0].message.content == TEXT
    assert details.accepted_prediction_tokens <= len(TEXT)


async def test_the_parts_of_a_prediction_are_one_text() -> None:
    parts = [{"type": "text", "text": TEXT[:40]}, {"type": "text", "text": TEXT[40:]}]
    async with reciting() as (_, client):
        _, in_parts = await ask(client, parts)
        _, whole = await ask(client, TEXT)
    assert in_parts == whole


async def test_a_stream_tells_it_with_its_usage() -> None:
    async with reciting() as (_, client):
        stream, said = (
            await client.chat.completions.create(
                model="bytes",
                messages=MESSAGES,
                prediction={"type": "content", "content": TEXT},
                stream=True,
                stream_options={"include_usage": True},
            ),
            "",
        )
        async for chunk in stream:
            if chunk.choices:
                said += chunk.choices[0].delta.content or ""
    assert said == TEXT
    assert chunk.usage.completion_tokens_details.accepted_prediction_tokens > 0.8 * len(TEXT)


async def test_every_choice_is_drafted_from_the_prediction() -> None:
    async with reciting() as (_, client):
        _, one = await ask(client, TEXT)
        reply, two = await ask(client, TEXT, n=2)
    assert [choice.message.content for choice in reply.choices] == [TEXT, TEXT]
    assert two.accepted_prediction_tokens == 2 * one.accepted_prediction_tokens


async def test_no_more_is_told_as_accepted_than_was_said() -> None:
    async with reciting() as (_, client):
        reply, details = await ask(client, TEXT, stop=["f"])
    assert reply.choices[0].message.content == "de"
    assert details.accepted_prediction_tokens <= reply.usage.completion_tokens


async def test_without_a_prediction_nothing_is_told_of_one() -> None:
    async with reciting() as (gateway, _):
        reply = await gateway.post(
            "/v1/chat/completions", {"model": "bytes", "messages": MESSAGES, "prediction": None}
        )
    assert "completion_tokens_details" not in reply.json()["usage"]


@pytest.mark.parametrize("policy", [{"enabled": False}, {"max_lookahead": 0}, {"drafter": "ngram"}])
async def test_a_request_that_chose_its_drafts_gets_none_from_its_prediction(policy) -> None:
    async with reciting() as (_, client):
        reply, details = await ask(client, TEXT, extra_body={"speculation": policy})
    assert reply.choices[0].message.content == TEXT
    assert details.accepted_prediction_tokens == details.rejected_prediction_tokens == 0


async def test_plain_completions_take_a_prediction_too() -> None:
    async with reciting() as (gateway, _):
        body = {"model": "bytes", "prompt": "x", "prediction": {"type": "content", "content": TEXT}}
        reply = (await gateway.post("/v1/completions", body)).json()
    assert reply["choices"][0]["text"] == TEXT
    told = reply["usage"]["completion_tokens_details"]
    assert told["accepted_prediction_tokens"] > 0.8 * len(TEXT)
