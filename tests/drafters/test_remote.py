"""Drafts over real sockets: sessions, calls that are given up, deadlines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from outrider.drafters import TableDrafter
from outrider.errors import DraftFailed
from outrider.models import TableModel
from outrider.types import NO_DRAFT, SamplingParams
from tests.servers.drafting import description, serving, until

from .draft_servers import V, answer, scripted, view

pytestmark = pytest.mark.anyio


@pytest.fixture
def model(write_table) -> TableModel:
    return TableModel.load(write_table("draft", order=2, vocab_size=V, context_length=64))


def descriptors() -> int:
    """Files and sockets that this process holds."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_its_drafts_are_those_of_the_drafter_behind_the_server(model, remote) -> None:
    near = TableDrafter(model)
    sampling = SamplingParams(temperature=0.9, frequency_penalty=0.5, logit_bias={1: 0.5})
    async with serving(TableDrafter(model), description(model)) as server:
        drafter = remote(server.url)
        info = await drafter.describe()
        assert (info.name, info.context_length, info.ahead) == (server.url[7:], 64, True)
        assert (info.model_hash, info.declares) == (model.model_hash, False)
        tokens = [0, 1]
        for _ in range(5):
            for guess in ((), (3, 4)):
                seen = view(tokens, sampling=sampling, guess=guess, noise_key=2**64 - 1, choice=2)
                draft = await drafter.propose(seen, 4)
                assert draft.token_ids == (await near.propose(seen, 4)).token_ids
                assert draft.source == info.name
            tokens = [*tokens, 2, *draft.token_ids[:2]]
        await drafter.release("s")
        await drafter.close()
        assert len(server.service.sessions) == 0


async def test_only_new_tokens_travel(remote) -> None:
    async with scripted(propose=answer({"tokens": [1]})) as server:
        drafter = remote(server.url)
        await drafter.describe()
        await drafter.propose(view([0, 1]), 4)
        await drafter.propose(view([0, 1, 2, 3]), 4)
        first, second = map(msgspec.msgpack.decode, server.bodies)
        assert (first["tokens"], first["prompt_length"], first["noise_key"]) == ([0, 1], 2, 7)
        assert set(second) == {"session_id", "base", "tokens", "num_tokens"}
        assert (second["base"], second["tokens"]) == (2, [2, 3])
        assert server.connections == 1
        await drafter.close()


async def test_a_server_that_lost_the_session_is_sent_all_of_it_in_the_same_call(
    model, remote
) -> None:
    async with serving(TableDrafter(model), description(model)) as server:
        drafter = remote(server.url)
        await drafter.describe()
        await drafter.propose(view([0, 1, 2]), 2)
        await server.service.sessions.close()
        draft = await drafter.propose(view([0, 1, 2, 3]), 2)
        assert len(draft) == 2
        await drafter.close()


async def test_a_server_that_holds_less_is_sent_what_it_lacks(remote) -> None:
    answers = [answer({"tokens": [1]}), answer({"held": 3}, status=409), answer({"tokens": [2]})]

    async def propose(path, body, writer):
        return answers.pop(0)

    async with scripted(propose=propose) as server:
        drafter = remote(server.url)
        await drafter.describe()
        await drafter.propose(view([0, 1, 2, 3]), 1)
        draft = await drafter.propose(view([0, 1, 2, 3, 4]), 1)
        assert draft.token_ids == (2,)
        last = msgspec.msgpack.decode(server.bodies[-1])
        assert (last["base"], last["tokens"]) == (3, [3, 4])
        await drafter.close()


async def test_a_server_that_loses_everything_always_is_a_failure(remote) -> None:
    async with scripted(propose=answer({"held": 0}, status=409)) as server:
        drafter = remote(server.url)
        await drafter.describe()
        with pytest.raises(DraftFailed, match="was sent those from 0 on"):
            await drafter.propose(view([0, 1]), 1)
        assert server.drafts == 1
        await drafter.close()


async def test_a_server_that_came_back_with_another_model_is_asked_anew_what_it_is(remote) -> None:
    answers = [answer({"tokens": [1]}), answer({"held": 0, "model_hash": "other"}, status=409)]

    async def propose(path, body, writer):
        return answers.pop(0)

    async with scripted(propose=propose) as server:
        drafter = remote(server.url)
        await drafter.describe()
        await drafter.propose(view([0, 1]), 1)
        with pytest.raises(DraftFailed, match="another model than before"):
            await drafter.propose(view([0, 1, 2]), 1)
        with pytest.raises(DraftFailed, match="is cut off"):
            await drafter.propose(view([0, 1, 2]), 1)
        await drafter.close()


async def test_a_call_given_up_costs_neither_the_connection_nor_the_session(model, remote) -> None:
    async with serving(TableDrafter(model), description(model)) as server:
        drafter = remote(server.url)
        await drafter.describe()
        await drafter.propose(view([0, 1, 2]), 1)
        tokens = [0, 1, 2]
        for turn in range(16):
            guess = (3,) if turn % 2 else ()
            asked = asyncio.create_task(drafter.propose(view(tokens, guess=guess), 3))
            await asyncio.sleep(0.0003 * (turn % 4))
            asked.cancel()
            await asyncio.wait([asked])
            tokens = [*tokens, turn % V]
            draft = await drafter.propose(view(tokens), 3)
            near = await TableDrafter(model).propose(view(tokens), 3)
            assert draft.token_ids == near.token_ids
        assert len(server.service.sessions) == 1
        await drafter.close()


async def test_many_calls_given_up_share_a_few_connections(remote) -> None:
    async def propose(path, body, writer):
        await asyncio.sleep(0.005)
        return answer({"tokens": [1]})

    async with scripted(propose=propose) as server:
        drafter = remote(server.url)
        await drafter.describe()
        for _ in range(10):
            asked = asyncio.create_task(drafter.propose(view([0, 1]), 3))
            await asyncio.sleep(0.001)
            asked.cancel()
            await drafter.propose(view([0, 1]), 3)
        assert server.connections <= 4


async def test_closing_gives_back_every_descriptor(remote) -> None:
    async def propose(path, body, writer):
        await asyncio.sleep(0.002)
        return answer({"tokens": [1]})

    async with scripted(propose=propose) as server:
        before = descriptors()
        drafter = remote(server.url)
        await drafter.describe()
        for turn in range(10):
            asked = asyncio.create_task(drafter.propose(view([0, 1], f"{turn}"), 3))
            await asyncio.sleep(0.001)
            asked.cancel()
            await asyncio.wait([asked])
            await drafter.release(f"{turn}")
        await drafter.close()
        await until(lambda: descriptors() <= before)
        assert drafter._placed == {}


async def test_the_deadline_follows_what_is_measured(model, remote) -> None:
    async with serving(TableDrafter(model), description(model)) as server:
        drafter = remote(server.url, deadline_ms=1000)
        await drafter.describe()
        assert drafter.deadline_s(4) == 1.0
        for length in range(2, 30):
            await drafter.propose(view([1] * length), 4)
        assert 0.005 <= drafter.deadline_s(4) < 0.5
        await drafter.close()


async def test_a_server_with_the_plain_form_alone_is_asked_for_greedy_tokens_and_sent_all(
    remote,
) -> None:
    async with scripted(propose=answer({"tokens": [1]}), describe=answer({}, status=404)) as server:
        drafter = remote(server.url)
        info = await drafter.describe()
        assert info.context_length is None
        await drafter.propose(view([0, 1], guess=(3,)), 4)
        await drafter.propose(view([0, 1, 2]), 4)
        assert [json.loads(body) for body in server.bodies] == [
            {"tokens": [0, 1, 3], "num_tokens": 4, "temperature": 0.0},
            {"tokens": [0, 1, 2], "num_tokens": 4, "temperature": 0.0},
        ]
        await drafter.release("s")
        await drafter.close()
        assert "/v1/release" not in server.asked


async def test_beyond_the_context_of_the_server_nothing_is_asked_for(remote) -> None:
    async with scripted(propose=answer({"tokens": [1]})) as server:
        drafter = remote(server.url)
        await drafter.describe()
        assert await drafter.propose(view([1] * 64), 4) is NO_DRAFT
        await drafter.propose(view([1] * 60, guess=(1, 1)), 4)
        assert msgspec.msgpack.decode(server.bodies[-1])["num_tokens"] == 2
        await drafter.close()


async def test_sessions_that_end_together_are_told_in_one_request(remote) -> None:
    async with scripted(propose=answer({"tokens": [1]})) as server:
        drafter = remote(server.url)
        await drafter.describe()
        for name in ("x", "y", "z"):
            await drafter.propose(view([0, 1], name), 1)
        for name in ("x", "y", "z", "unknown"):
            await drafter.release(name)
        await drafter.close()
        assert server.asked.count("/v1/release") == 1
        assert drafter._fleet.servers[0].sessions == 0


async def test_nobody_waits_for_the_release_of_a_session(remote) -> None:
    async with scripted(propose=answer({"tokens": [1]})) as server:
        drafter = remote(server.url)
        await drafter.describe()
        await drafter.propose(view([0, 1]), 1)
        before = list(server.asked)
        await drafter.release("s")
        assert server.asked == before  # it is told beside the requests
        await until(lambda: server.asked[-1] == "/v1/release")
