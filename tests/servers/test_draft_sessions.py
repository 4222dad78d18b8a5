"""The sessions of a draft server: what travels, what is kept, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from outrider.drafters import TableDrafter
from outrider.models import TableModel
from outrider.sampling import History, TokenSampler
from outrider.types import SamplingParams

from .drafting import V, Watched, description, greedy, serving, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def model(write_table) -> TableModel:
    return TableModel.load(write_table("draft", order=2, vocab_size=V, context_length=64))


async def test_in_a_session_only_new_tokens_travel_and_the_draft_couples_with_the_target(
    model,
) -> None:
    sampling = {"temperature": 0.9, "presence_penalty": 1.0}
    sampler = TokenSampler(SamplingParams(**sampling), 2**63 + 5, 1)
    history = History([0, 1], [2])
    for _ in range(3):
        row = model.logits(history.tokens, len(history))
        history.extend([sampler.sample(row, history)])
    opening = {"prompt_length": 2, "noise_key": 2**63 + 5, "choice": 1, "sampling": sampling}
    async with serving(TableDrafter(model), description(model)) as server:
        await server.propose(session_id="s", tokens=[0, 1], num_tokens=1, **opening)
        answer = await server.propose(session_id="s", base=2, tokens=[2], num_tokens=3)
        assert answer == {"tokens": history.tokens[3:]}
        assert len(server.service.sessions) == 1


async def test_tokens_that_are_not_held_are_asked_for_with_409(model) -> None:
    async with serving(TableDrafter(model), description(model)) as server:
        unknown = await server.propose(409, session_id="s", base=5, tokens=[1], num_tokens=2)
        assert unknown == {"held": 0, "model_hash": model.model_hash}
        await server.propose(session_id="s", tokens=[0, 1, 2], num_tokens=2)
        ahead = await server.propose(409, session_id="s", base=4, tokens=[1], num_tokens=2)
        assert ahead["held"] == 3
        assert b"outrider_draft_sessions_lost_total 2.0" in await server.get("/metrics")


async def test_a_base_below_what_is_held_goes_back_to_what_both_have_in_common(model) -> None:
    watched = Watched(TableDrafter(model))
    async with serving(watched, description(model)) as server:
        ask = {"session_id": "s", "num_tokens": 1}
        await server.propose(tokens=[0, 1, 2, 3], prompt_length=2, noise_key=1, **ask)
        await server.propose(base=2, tokens=[2, 3, 4], **ask)
        assert not watched.released  # all of it was the same
        await server.propose(base=2, tokens=[2, 4], **ask)
        assert [tokens for _, tokens, _ in watched.views] == [
            [0, 1, 2, 3],
            [0, 1, 2, 3, 4],
            [0, 1, 2, 4],
        ]
        assert watched.released == [watched.views[0][0]]


async def test_a_guess_is_drafted_behind_and_not_kept(model) -> None:
    async with serving(TableDrafter(model), description(model)) as server:
        ask = {"session_id": "s", "num_tokens": 2}
        guessed = await server.propose(tokens=[0, 1], guess=[3, 4], **ask)
        assert guessed["tokens"] == greedy(model, [0, 1, 3, 4], 2)
        plain = await server.propose(base=2, tokens=[], **ask)
        assert plain["tokens"] == greedy(model, [0, 1], 2)


async def test_the_session_that_was_idle_for_longest_makes_room_and_busy_ones_do_not(model) -> None:
    watched = Watched(TableDrafter(model))
    ask = {"tokens": [0], "num_tokens": 1, "noise_key": 1}
    async with serving(watched, description(model), engine={"max_sessions": 2}) as server:
        for name in ("a", "b", "c"):
            await server.propose(session_id=name, **ask)
        assert watched.released == [watched.views[0][0]]
        watched.hold = asyncio.Event()
        held = [asyncio.create_task(server.propose(session_id=name, **ask)) for name in ("b", "c")]
        await until(lambda: len(watched.views) == 5)
        refused = await server.propose(429, session_id="d", **ask)
        assert "engine.max_sessions" in refused["error"]["message"]
        watched.hold.set()
        await asyncio.gather(*held)


async def test_a_session_that_nobody_asks_for_expires(model) -> None:
    limits = {"draft_server": {"session_s": 0.05}}
    async with serving(TableDrafter(model), description(model), **limits) as server:
        await server.propose(session_id="s", tokens=[0], num_tokens=1)
        await until(lambda: len(server.service.sessions) == 0)
        await server.propose(409, session_id="s", base=1, tokens=[0], num_tokens=1)


async def test_a_released_session_is_forgotten(model) -> None:
    async with serving(TableDrafter(model), description(model)) as server:
        await server.propose(session_id="s", tokens=[0], num_tokens=1)
        body = {"session_ids": ["s", "unknown"]}
        async with server.http.post(f"{server.url}/v1/release", json=body) as response:
            assert response.status == 200
        assert len(server.service.sessions) == 0


async def test_a_client_that_goes_away_cancels_its_draft(model) -> None:
    watched = Watched(TableDrafter(model))
    watched.hold = asyncio.Event()
    async with serving(watched, description(model)) as server:
        asked = asyncio.create_task(
            server.propose(session_id="s", tokens=[0], num_tokens=1, noise_key=1)
        )
        await until(lambda: watched.views)
        asked.cancel()
        await until(lambda: watched.cancelled == 1)
        watched.hold = None
        await server.propose(session_id="s", base=1, tokens=[1], num_tokens=1)


async def test_a_later_request_for_the_session_cuts_the_one_before_short(model) -> None:
    watched = Watched(TableDrafter(model))
    watched.hold = asyncio.Event()
    async with serving(watched, description(model)) as server:
        first = asyncio.create_task(
            server.propose(409, session_id="s", tokens=[0], num_tokens=1, noise_key=1)
        )
        await until(lambda: watched.views)
        watched.hold = None
        answer = await server.propose(session_id="s", base=1, tokens=[1], num_tokens=1)
        assert len(answer["tokens"]) == 1
        assert (await first)["held"] == 2
        assert watched.cancelled == 1
