"""Whatever a draft server does, the output is that of the target alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from outrider.config import Settings
from outrider.drafters import TableDrafter
from outrider.drafters.wire import Description
from outrider.models import TableModel
from outrider.pipeline import Pipeline, create_pipeline
from outrider.types import SamplingParams
from tests.servers.drafting import serving

from .draft_servers import answer, scripted

pytestmark = pytest.mark.anyio

GREEDY = SamplingParams(temperature=0.0, max_tokens=60)
SEEDED = SamplingParams(temperature=1.0, seed=5, max_tokens=60)


async def outputs(pipeline: Pipeline) -> list[list[int]]:
    found = []
    for sampling in (GREEDY, SEEDED):
        session = pipeline.session((0, 1), sampling)
        async for _ in pipeline.run(session):
            await asyncio.sleep(0.001)  # so that a draft server has time for what it does
        found.append(list(session.output_ids))
    return found


async def built(table: object, draft: str, *, deadline_ms: float = 60.0) -> Pipeline:
    return await create_pipeline(
        Settings(
            engine={"target": f"table:{table}"},
            speculation={
                "drafts": (draft,),
                "controller": "fixed",
                "lookahead": 3,
                "deadline_ms": deadline_ms,
                "remote_deadline_ms": deadline_ms,
            },
        )
    )


@pytest.fixture
def table(write_table: Callable[..., object]) -> object:
    return write_table("target", order=2, vocab_size=5)


@pytest.fixture
async def plain(table) -> list[list[int]]:
    pipeline = await built(table, "none")
    found = await outputs(pipeline)
    await pipeline.close()
    return found


async def slow(path, body, writer):
    await asyncio.sleep(0.05)
    return answer({"tokens": [1, 2, 3]})


async def hung(path, body, writer):
    await asyncio.sleep(1)


async def out_of_spite(path, body, writer):
    """Another answer each time, right or wrong as it comes."""
    digit = sum(body) % 5
    return answer({"tokens": [digit, (digit * 3) % 5]})


BAD = {
    "slow": slow,
    "hung": hung,
    "closed": None,
    "garbage": answer(b"\x00\x01"),
    "out_of_range": answer({"tokens": [1, 7]}),
    "too_many": answer({"tokens": [1] * 40}),
    "wrong_distribution": answer({"tokens": [4, 4, 4]}),
    "spite": out_of_spite,
    "errors": answer({}, status=500),
    "busy": answer({}, status=429),
    "loses_all": answer({"held": 0}, status=409),
    "empty": answer({"tokens": []}),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_draft_server_costs_speed_and_never_the_output(kind, table, plain) -> None:
    async with scripted(propose=BAD[kind]) as server:
        pipeline = await built(table, server.url, deadline_ms=10)
        assert await outputs(pipeline) == plain
        assert pipeline.occupancy()[0] == 0
        await pipeline.close()


async def test_a_good_draft_server_has_its_drafts_accepted_with_the_same_output(
    table, plain
) -> None:
    model = TableModel.load(table)
    said = Description(
        name="same",
        model_hash=model.model_hash,
        vocab_size=5,
        vocab_fingerprint=model.vocab_fingerprint,
        context_length=model.context_length,
    )
    async with serving(TableDrafter(model), said) as server:
        pipeline = await built(table, server.url, deadline_ms=2000)
        for sampling, expected in zip((GREEDY, SEEDED), plain, strict=True):
            session = pipeline.session((0, 1), sampling)
            async for _ in pipeline.run(session):
                pass
            assert list(session.output_ids) == expected
            assert session.stats.drafted > 0
            assert session.stats.accepted == session.stats.drafted  # coupled: the same model
        await pipeline.close()
        assert len(server.service.sessions) == 0


async def test_a_draft_server_that_dies_and_comes_back_in_the_middle_changes_nothing(
    table, plain
) -> None:
    async with scripted(propose=answer({"tokens": [1, 2]})) as server:
        pipeline = await built(table, server.url)
        session = pipeline.session((0, 1), SEEDED)
        steps = 0
        async for _ in pipeline.run(session):
            steps += 1
            server.propose = None if 3 < steps < 9 else answer({"tokens": [1, 2]})
        assert list(session.output_ids) == plain[1]
        await pipeline.close()
