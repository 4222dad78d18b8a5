"""The draft server over real sockets, with a table for a model."""

from __future__ import annotations

import asyncio
import math
import socket
from collections import Counter

import aiohttp
import msgspec
import pytest

from outrider.config import Settings
from outrider.drafters import NgramDrafter, SessionView, TableDrafter
from outrider.errors import ConfigError, DraftFailed
from outrider.models import TableModel
from outrider.servers.draft import serve_draft
from outrider.types import Draft

from .drafting import V, Watched, description, greedy, serving, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def model(write_table) -> TableModel:
    return TableModel.load(write_table("draft", order=2, vocab_size=V, context_length=64))


async def test_the_plain_form_answers_with_greedy_tokens_and_keeps_nothing(model) -> None:
    async with serving(TableDrafter(model), description(model)) as server:
        answer = await server.propose(tokens=[0, 1], num_tokens=4, temperature=0)
        assert answer == {"tokens": greedy(model, [0, 1], 4), "logprobs": [0.0] * 4}
        assert len(server.service.sessions) == 0


async def test_the_plain_form_samples_with_the_temperature_and_tells_log_probabilities(
    model,
) -> None:
    row = model.logits([0, 1], 2) / 0.7
    probs = [math.exp(x) / sum(map(math.exp, row)) for x in row]
    seen: Counter[int] = Counter()
    async with serving(TableDrafter(model), description(model)) as server:
        for _ in range(200):
            answer = await server.propose(tokens=[0, 1], num_tokens=1, temperature=0.7)
            (token,) = answer["tokens"]
            seen[token] += 1
            assert answer["logprobs"][0] == pytest.approx(math.log(probs[token]), abs=2e-3)
    assert all(abs(seen[token] / 200 - probs[token]) < 0.15 for token in range(V))


async def test_msgpack_is_answered_in_msgpack(model) -> None:
    body = msgspec.msgpack.encode({"tokens": [0, 1], "num_tokens": 2})
    headers = {"Content-Type": "application/msgpack"}
    async with (
        serving(TableDrafter(model), description(model)) as server,
        server.http.post(f"{server.url}/v1/propose", data=body, headers=headers) as response,
    ):
        assert response.content_type == "application/msgpack"
        answer = msgspec.msgpack.decode(await response.read())
    assert answer["tokens"] == greedy(model, [0, 1], 2)


async def test_the_distribution_that_was_drawn_from_is_told_when_asked_for(model) -> None:
    async with serving(TableDrafter(model), description(model)) as server:
        answer = await server.propose(
            tokens=[0, 1], num_tokens=3, temperature=1.0, return_distribution=True
        )
    assert len(answer["support"]) == len(answer["counts"]) == 3
    known = [0, 1]
    for token, ids, counts in zip(
        answer["tokens"], answer["support"], answer["counts"], strict=True
    ):
        assert token in ids
        assert sum(counts) == 65535
        row = model.logits(known, len(known))
        total = sum(map(math.exp, row))
        for token_id, count in zip(ids, counts, strict=True):
            assert count / 65535 == pytest.approx(math.exp(row[token_id]) / total, abs=2e-5)
        known.append(token)


MEANINGLESS = [
    ({"tokens": [0, V], "num_tokens": 1}, "tokens has 5; ids of table:draft lie in 0..4"),
    ({"tokens": [-1], "num_tokens": 1}, "tokens has -1"),
    ({"tokens": [0], "guess": [9], "num_tokens": 1}, "guess has 9"),
    ({"tokens": [], "num_tokens": 1}, "tokens is empty"),
    ({"tokens": [0], "num_tokens": 0}, "num_tokens is 0; ask for 1 to 64"),
    ({"tokens": [0], "num_tokens": 65}, "num_tokens is 65"),
    ({"tokens": [0], "num_tokens": 1, "base": 2}, "base is 2"),
    ({"tokens": [0], "num_tokens": 1, "temperature": -1}, "temperature is -1"),
    ({"tokens": [0], "num_tokens": 1, "noise_key": 2**64}, "noise_key must fit in 64 bits"),
    ({"tokens": [0], "num_tokens": 1, "prompt_length": 2}, "prompt_length is 2"),
    ({"tokens": ["a"], "num_tokens": 1}, 'tokens[0] is "a"'),
    ({"tokens": [0], "num_tokens": 1, "magic": 1}, "magic is not a field"),
    ({"tokens": [0] * 65, "num_tokens": 1}, "the context has 65 tokens"),
    (
        {"tokens": [0], "num_tokens": 1, "sampling": {"logit_bias": {"7": 1}}},
        "logit_bias has 7",
    ),
    ({"tokens": [0], "num_tokens": 1, "session_id": "a\nb"}, "session_id and tenant"),
]


async def test_what_has_no_meaning_is_refused_by_name(model) -> None:
    async with serving(TableDrafter(model), description(model)) as server:
        for body, said in MEANINGLESS:
            answer = await server.propose(400, **body)
            assert said in answer["error"]["message"]
        assert len(server.service.sessions) == 0


async def test_near_the_end_of_the_context_less_is_drafted(model) -> None:
    async with serving(TableDrafter(model), description(model)) as server:
        assert len((await server.propose(tokens=[0] * 62, num_tokens=8))["tokens"]) == 2
        assert (await server.propose(tokens=[0] * 64, num_tokens=8))["tokens"] == []


async def test_a_body_that_is_too_large_is_refused(model) -> None:
    limits = {"draft_server": {"max_body_bytes": 1024}}
    async with serving(TableDrafter(model), description(model), **limits) as server:
        answer = await server.propose(413, tokens=[0] * 2000, num_tokens=1)
        assert "draft_server.max_body_bytes" in answer["error"]["message"]


async def test_other_content_types_are_refused(model) -> None:
    async with (
        serving(TableDrafter(model), description(model)) as server,
        server.http.post(f"{server.url}/v1/propose", data="x") as response,
    ):
        assert response.status == 415


async def test_more_requests_than_are_worked_on_get_429(model) -> None:
    watched = Watched(TableDrafter(model))
    watched.hold = asyncio.Event()
    ask = {"tokens": [0], "num_tokens": 1, "noise_key": 1}
    limits = {"draft_server": {"max_concurrent": 1}}
    async with serving(watched, description(model), **limits) as server:
        first = asyncio.create_task(server.propose(**ask))
        await until(lambda: watched.views)
        refused = await server.propose(429, **ask)
        assert "draft_server.max_concurrent" in refused["error"]["message"]
        watched.hold.set()
        await first


async def test_a_wrong_bearer_token_is_refused_but_for_health_and_metrics(model) -> None:
    peers = {"peers": {"token": "secret"}}
    async with serving(TableDrafter(model), description(model), **peers) as server:
        await server.get("/health")
        await server.get("/metrics")
        await server.get("/v1/describe", 401)
        answer = await server.propose(401, tokens=[0], num_tokens=1)
        assert "peers.token" in answer["error"]["message"]
        for given, status in (("Bearer secret", 200), ("Bearer secre", 401), ("secret", 401)):
            async with server.http.get(
                f"{server.url}/v1/describe", headers={"Authorization": given}
            ) as response:
                assert response.status == status


async def test_it_describes_itself(model) -> None:
    async with serving(TableDrafter(model), description(model)) as server:
        said = msgspec.json.decode(await server.get("/v1/describe"))
        assert said == {
            "name": "table:draft",
            "model_hash": model.model_hash,
            "vocab_size": V,
            "vocab_fingerprint": "ids:5",
            "context_length": 64,
            "deterministic": False,
            "max_tokens": 64,
        }
        assert b"version" in await server.get("/version")
        assert b"ready" in await server.get("/ready")
        assert b"/v1/propose" in await server.get("/")


async def test_a_drafter_that_declares_nothing_needs_a_noise_key(model) -> None:
    async with serving(NgramDrafter(), description(model)) as server:
        answer = await server.propose(400, tokens=[0, 1, 0, 1], num_tokens=2)
        assert "declares no distributions" in answer["error"]["message"]
        answer = await server.propose(tokens=[0, 1, 0, 1], num_tokens=2, noise_key=0)
        assert answer["tokens"] == [0, 1]


async def test_a_drafter_that_fails_is_an_error_of_the_server(model) -> None:
    class Failing(Watched):
        async def propose(self, view: SessionView, max_tokens: int) -> Draft:
            raise DraftFailed("out of order")

    async with serving(Failing(TableDrafter(model)), description(model)) as server:
        answer = await server.propose(502, tokens=[0], num_tokens=1, noise_key=1)
        assert answer["error"]["message"] == "out of order"
        assert server.service._running == 0


async def test_a_drain_lets_drafts_finish_and_refuses_new_ones(model) -> None:
    watched = Watched(TableDrafter(model))
    watched.hold = asyncio.Event()
    ask = {"tokens": [0], "num_tokens": 1, "noise_key": 1}
    async with serving(watched, description(model)) as server:
        running = asyncio.create_task(server.propose(**ask))
        await until(lambda: watched.views)
        server.stop.set()
        await until(lambda: server.lifecycle.draining)
        await server.get("/ready", 503)
        refused = await server.propose(503, **ask)
        assert refused["error"]["code"] == "shutting_down"
        watched.hold.set()
        assert len((await running)["tokens"]) == 1


async def test_a_draft_that_outlasts_the_drain_is_cut(model) -> None:
    watched = Watched(TableDrafter(model))
    watched.hold = asyncio.Event()
    limits = {"draft_server": {"drain_s": 0.05}}
    async with serving(watched, description(model), **limits) as server:
        running = asyncio.create_task(server.propose(503, tokens=[0], num_tokens=1, noise_key=1))
        await until(lambda: watched.views)
        server.stop.set()
        await running
        assert watched.cancelled == 1


async def test_the_command_serves_a_table_until_it_is_told_to_stop(write_table) -> None:
    table = write_table("draft", vocab_size=V)
    settings = Settings(engine={"target": f"table:{table}"}, draft_server={"port": 0})
    stop = asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_draft(settings, on_ready=address.set_result, stop=stop))
    url = await asyncio.wait_for(address, 10)
    async with aiohttp.ClientSession() as http, http.get(f"{url}/ready") as response:
        assert response.status == 200
    stop.set()
    await asyncio.wait_for(task, 5)


async def test_listening_for_other_machines_needs_a_token(write_table) -> None:
    settings = Settings(
        engine={"target": f"table:{write_table('draft')}"}, draft_server={"host": "::"}
    )
    with pytest.raises(ConfigError, match=r"draft_server\.host is '::'.*peers\.token"):
        await serve_draft(settings)


@pytest.mark.parametrize("spec", ["ngram", "layers:3", "http://x:1"])
async def test_what_needs_no_server_is_refused_with_the_remedy(spec) -> None:
    settings = Settings(engine={"target": spec}, draft_server={"port": 0})
    with pytest.raises(ConfigError, match="cannot serve"):
        await serve_draft(settings)


async def test_an_answer_comes_in_one_piece(model) -> None:
    async with serving(TableDrafter(model), description(model)) as server:
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            for _ in range(3):
                await loop.sock_sendall(client, b"GET /v1/describe HTTP/1.1\r\nHost: x\r\n\r\n")
                received = await loop.sock_recv(client, 65536)
                assert received.startswith(b"HTTP/1.1 200")
                assert received.endswith(b"}")
