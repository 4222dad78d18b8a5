"""The API through OpenAI's own client, with strict validation."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai.types import completion_choice

from .conftest import Serving
from .serving import ScriptedTarget, scripted

pytestmark = pytest.mark.anyio

TEXT = "Grüße 日本 🙂!"


def speaking() -> ScriptedTarget:
    tokens = (*TEXT.encode(), 256)
    return ScriptedTarget(lambda _: [tokens[:5], tokens[5:9], tokens[9:]])


def async_client(url: str, *, strict: bool = True) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="x", max_retries=0, _strict_response_validation=strict
    )


def sync_client(url: str, *, strict: bool = True) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{url}/v1", api_key="x", max_retries=0, _strict_response_validation=strict
    )


async def test_the_async_client_chats_whole_and_streamed() -> None:
    async with scripted(speaking(), sockets=True) as gateway, async_client(gateway.url) as client:
        whole = await client.chat.completions.create(
            model="bytes", messages=[{"role": "user", "content": "Hi"}], n=2
        )
        assert [choice.message.content for choice in whole.choices] == [TEXT, TEXT]
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 2 * (len(TEXT.encode()) + 1)
        assert whole.model_extra is not None
        assert whole.model_extra["speculation"]["exact"] == "distribution"

        said = ""
        stream = await client.chat.completions.create(
            model="bytes",
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        for chunk in chunks[:-1]:
            said += chunk.choices[0].delta.content or ""
        assert said == TEXT
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.prompt_tokens == len(b"user: Hi\nassistant:")


async def test_the_sync_client_completes_whole_and_streamed() -> None:
    def work(url: str) -> tuple[str, str, list[str]]:
        with sync_client(url) as client:
            whole = client.completions.create(model="bytes", prompt="Hi", stop=["!"])
            models = [model.id for model in client.models.list()]
        # OpenAI itself sends a null finish_reason here, which its own strict model does not allow.
        with sync_client(url, strict=False) as client:
            stream = client.completions.create(model="bytes", prompt="Hi", stream=True)
            streamed = "".join(chunk.choices[0].text for chunk in stream)
        return whole.choices[0].text, streamed, models

    async with scripted(speaking(), sockets=True) as gateway:
        whole, streamed, models = await asyncio.to_thread(work, gateway.url)
    assert whole == TEXT[:-1]
    assert streamed == TEXT
    assert models == ["bytes"]


async def test_the_streaming_helper_of_the_client_assembles_the_message() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    async with (
        scripted(speaking(), sockets=True) as gateway,
        async_client(gateway.url) as client,
        client.chat.completions.stream(model="bytes", messages=messages) as stream,
    ):
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == TEXT


async def test_errors_arrive_as_the_clients_own_classes() -> None:
    target = ScriptedTarget(lambda _: [(120,), ValueError("inside")])
    async with scripted(target, sockets=True) as gateway, async_client(gateway.url) as client:
        with pytest.raises(openai.NotFoundError, match="serves 'bytes'"):
            await client.completions.create(model="gpt", prompt="x")
        with pytest.raises(openai.BadRequestError, match="temperature is -1") as caught:
            await client.completions.create(model="bytes", prompt="x", temperature=-1)
        assert caught.value.param == "temperature"
        messages = [{"role": "user", "content": "x"}]
        stream = await client.chat.completions.create(model="bytes", messages=messages, stream=True)
        assert (await anext(stream)).choices[0].delta.content == "x"
        with pytest.raises(openai.APIError, match="internal error"):
            await anext(stream)


async def test_the_policy_travels_in_the_extra_body(table_gateway: Serving) -> None:
    async with table_gateway(sockets=True) as gateway, async_client(gateway.url) as client:
        reply = await client.completions.create(
            model="target",
            prompt=[0, 1],
            temperature=0,
            max_tokens=20,
            extra_body={"speculation": {"drafter": "ngram"}, "return_token_ids": True},
        )
    assert reply.model_extra is not None
    assert reply.model_extra["speculation"]["drafter"] == "ngram"
    assert len(reply.choices[0].token_ids) == 20  # type: ignore[attr-defined]


async def test_a_chats_log_probabilities_pass_the_clients_strict_types() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    asked = {"model": "bytes", "messages": messages, "logprobs": True, "top_logprobs": 2}
    async with scripted(speaking(), sockets=True) as gateway, async_client(gateway.url) as client:
        whole = await client.chat.completions.create(**asked)
        stream = await client.chat.completions.create(**asked, stream=True)
        chunks = [chunk async for chunk in stream]
        async with client.chat.completions.stream(**asked) as helper:
            assembled = await helper.get_final_completion()
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.refusal is None
    said = bytes(byte for entry in logprobs.content for byte in entry.bytes or ())
    assert said.decode() == TEXT == whole.choices[0].message.content
    assert [len(entry.top_logprobs) for entry in logprobs.content] == [2] * len(TEXT.encode())
    streamed = [
        entry
        for chunk in chunks
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or ()
    ]
    assert streamed == logprobs.content
    assert assembled.choices[0].logprobs is not None
    assert assembled.choices[0].logprobs.content == logprobs.content


async def test_a_plain_completions_log_probabilities_pass_the_clients_strict_types() -> None:
    def work(url: str) -> tuple[completion_choice.Logprobs, list[completion_choice.Logprobs]]:
        with sync_client(url) as client:
            whole = client.completions.create(model="bytes", prompt="Hi", logprobs=3)
        with sync_client(url, strict=False) as client:  # for its null finish_reason, as above
            stream = client.completions.create(model="bytes", prompt="Hi", logprobs=3, stream=True)
            parts = [chunk.choices[0].logprobs for chunk in stream]
        assert whole.choices[0].logprobs is not None
        strict = completion_choice.Logprobs.model_validate
        return whole.choices[0].logprobs, [
            strict(part.to_dict(), strict=True) for part in parts if part is not None
        ]

    async with scripted(speaking(), sockets=True) as gateway:
        whole, parts = await asyncio.to_thread(work, gateway.url)
    assert len(parts) > 1
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [each for part in parts for each in getattr(part, name)]
        assert joined == getattr(whole, name)
        assert len(joined) == len(TEXT.encode())
