"""The client: what it waits for, what it gives up on, and what it says then."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp import web

from outrider.endpoints import Refused, base_url, connect
from outrider.endpoints import client as client_module
from outrider.errors import ConfigError, RequestError, TargetFailed
from tests.audit.servers import SmallServer

pytestmark = pytest.mark.anyio

BODY = {"model": "small", "prompt": [0], "max_tokens": 2, "temperature": 1}


def dial(url: str, *, timeout_s: float = 5.0, key: str | None = None):
    return connect(url, api_key=key, timeout_s=timeout_s, concurrency=2)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_address_may_end_in_v1_or_not(url) -> None:
    assert base_url(url) == "http://h:1/v1"


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://h", "http://", "http://h:x", "http://h?a"]
)
def test_what_is_no_address_is_refused(url) -> None:
    with pytest.raises(ConfigError, match="write http://HOST:PORT"):
        base_url(url)


async def test_a_busy_server_is_waited_for_and_that_costs_no_sample() -> None:
    async with SmallServer(refuse=[429] * 5).running() as server, dial(server.url) as [endpoint]:
        await endpoint.complete("completions", BODY)
        assert endpoint.retries == 0


async def test_a_server_that_fails_now_and_then_is_asked_again_and_that_is_counted() -> None:
    async with SmallServer(refuse=[503]).running() as server, dial(server.url) as [endpoint]:
        await endpoint.complete("completions", BODY)
        assert endpoint.retries == 1


async def test_a_server_that_goes_on_failing_is_given_up_with_its_message(monkeypatch) -> None:
    monkeypatch.setattr(client_module, "_RETRIES", 0)
    async with SmallServer(refuse=[500]).running() as server, dial(server.url) as [endpoint]:
        with pytest.raises(TargetFailed, match=r"answered 500 \(not now\)"):
            await endpoint.complete("completions", BODY)


@pytest.mark.parametrize(
    ("status", "kind", "remedy"),
    [
        (400, Refused, "not now"),
        (401, RequestError, "--api-key"),
        (404, RequestError, "--model"),
        (307, RequestError, "redirect"),
    ],
)
async def test_a_refusal_names_the_remedy(status, kind, remedy) -> None:
    async with SmallServer(refuse=[status]).running() as server, dial(server.url) as [endpoint]:
        with pytest.raises(kind, match=remedy) as caught:
            await endpoint.complete("completions", BODY)
        assert server.url in str(caught.value)


async def test_nobody_there_is_one_line_with_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with dial(url) as [endpoint]:
            with pytest.raises(TargetFailed, match="is the server running there") as caught:
                await endpoint.only_model()
    assert url in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_the_key_is_sent() -> None:
    async with SmallServer().running() as server, dial(server.url, key="abc") as [endpoint]:
        await endpoint.complete("completions", BODY)
        assert server.keys == {"Bearer abc"}


async def test_among_several_models_one_must_be_named() -> None:
    async with SmallServer(models=("a", "b")).running() as server, dial(server.url) as [endpoint]:
        with pytest.raises(RequestError, match=r"lists 2 models \(a, b\); name one with --model"):
            await endpoint.only_model()


ESCAPES = "evil\x1b]0;owned\x07\x1b[2J"


async def test_models_are_listed_without_their_control_characters() -> None:
    names = (ESCAPES, "b")
    async with SmallServer(models=names).running() as server, dial(server.url) as [endpoint]:
        with pytest.raises(RequestError, match="lists 2 models") as caught:
            await endpoint.only_model()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", [ESCAPES, "x" * 5000])
async def test_a_model_that_cannot_be_called_by_what_is_shown_is_refused(name) -> None:
    async with SmallServer(models=(name,)).running() as server, dial(server.url) as [endpoint]:
        with pytest.raises(RequestError, match="too long or holds control characters") as caught:
            await endpoint.only_model()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


async def test_an_answer_that_is_not_even_http_is_told_on_one_harmless_line(monkeypatch) -> None:
    monkeypatch.setattr(client_module, "_RETRIES", 0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nEvil\x1b[2J: " + b"x" * 400 + b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with dial(f"http://127.0.0.1:{port}") as [endpoint]:
            with pytest.raises(TargetFailed, match="cannot talk to") as caught:
                await endpoint.complete("completions", BODY)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


class _Odd(SmallServer):
    """Answers completions with `answer`, or not at all."""

    answer: bytes | None = None

    async def complete(self, request: web.Request) -> web.Response:
        if self.answer is None:
            await asyncio.sleep(30)
        return web.Response(body=self.answer)


async def test_a_server_that_never_answers_is_given_up_in_time(monkeypatch) -> None:
    monkeypatch.setattr(client_module, "_RETRIES", 0)
    async with _Odd().running() as server, dial(server.url, timeout_s=0.2) as [endpoint]:
        with pytest.raises(TargetFailed, match=r"within 0\.2 s"):
            await endpoint.complete("completions", BODY)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"<html>hello\x1b[31m</html>", "no completion"),
        (b'{"choices": []}', "no completion"),
        (b'{"choices": [{"token_ids": "x"}]}', "no completion"),
        (b"\xff" * 200, "no completion"),
        (b'{"choices": [], "x": ' + b"[" * 100_000, "no completion"),
        (b'{"choices": [{"token_ids": [1, 2, 3]}]}', "3 tokens where at most 2 were asked for"),
        (b" " * (9 << 20), "more than 8388608 bytes"),
    ],
)
async def test_what_is_no_completion_is_refused_and_shown_harmlessly(answer, complaint) -> None:
    server = _Odd()
    server.answer = answer
    async with server.running(), dial(server.url) as [endpoint]:
        with pytest.raises(TargetFailed, match=complaint) as caught:
            await endpoint.complete("completions", BODY)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500
