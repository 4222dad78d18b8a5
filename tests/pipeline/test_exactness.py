"""The pipeline emits what the target alone would have said, whatever is drafted."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from outrider.drafters import NgramDrafter, TableDrafter
from outrider.models import TableModel
from outrider.sampling import warp
from outrider.types import SamplingParams
from tests.pipeline.scenes import (
    ScriptedDrafter,
    alone,
    pipeline_over,
    run,
    settings,
    table_target,
)

pytestmark = pytest.mark.anyio

PROMPT = (0, 1, 2, 0, 1)
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=40),
    "sampled": SamplingParams(temperature=1.0, seed=5, max_tokens=40),
    "warped": SamplingParams(
        temperature=0.8, top_p=0.9, top_k=4, min_p=0.02, seed=6, max_tokens=40
    ),
}


def noise(view, k):
    draw = random.Random(view.length)
    return [draw.randrange(5) for _ in range(k)]


@pytest.fixture
def drafters(write_table):
    return {
        "ngram": NgramDrafter(),
        "table": TableDrafter(TableModel.load(write_table("draft", seed=2))),
        "self": TableDrafter(TableModel.load(write_table("target", seed=1, order=2, eos=(4,)))),
        "noise": ScriptedDrafter(noise),
        "late": ScriptedDrafter(lambda view, k: 0.02 if view.length % 3 else [0]),
    }


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafter", ["ngram", "table", "self", "noise", "late"])
@pytest.mark.parametrize("k", [0, 1, 4, 8])
async def test_output_equals_the_target_alone_for_every_drafter_and_lookahead(
    write_table, drafters, k, drafter, sampling
) -> None:
    file = write_table("target", seed=1, order=2, eos=(4,))
    configured = settings(controller="fixed", lookahead=k, deadline_ms=10)
    pipeline = await pipeline_over(table_target(file), drafters[drafter], configured=configured)
    params = SAMPLINGS[sampling]
    expected = alone(file, PROMPT, params)
    assert await run(pipeline, pipeline.session(PROMPT, params)) == expected
    assert pipeline.occupancy()[0] == 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_output_does_not_depend_on_the_company_of_other_sessions(
    write_table, drafters, sampling
) -> None:
    file = write_table("target", seed=1, order=2)
    pipeline = await pipeline_over(table_target(file), *drafters.values())
    params = SAMPLINGS[sampling]
    names = ["ngram", "table", "self", "scripted"] * 4
    found = await asyncio.gather(
        *(
            run(pipeline, pipeline.session(PROMPT, params, choice=i, key=None, drafter=name))
            for i, name in enumerate(names)
            if name in pipeline.drafter_names
        )
    )
    kept = [i for i, name in enumerate(names) if name in pipeline.drafter_names]
    assert list(found) == [alone(file, PROMPT, params, choice=i) for i in kept]


async def test_a_window_controller_never_changes_the_output(write_table, drafters) -> None:
    file = write_table("target", seed=1, order=2)
    params = SamplingParams(seed=9, max_tokens=200)
    for name in ("self", "noise", "table"):
        configured = settings(controller="window", window=2)
        pipeline = await pipeline_over(table_target(file), drafters[name], configured=configured)
        session = pipeline.session(PROMPT, params)
        assert await run(pipeline, session) == alone(file, PROMPT, params)
        assert session.stats.drafted > 0


async def test_drafting_from_the_target_itself_is_always_accepted(write_table, drafters) -> None:
    """Coupling: equal rows and equal noise draw equal tokens."""
    file = write_table("target", seed=1, order=2, eos=(4,))
    pipeline = await pipeline_over(table_target(file), drafters["self"])
    session = pipeline.session(PROMPT, SamplingParams(seed=3, max_tokens=60, ignore_eos=True))
    await run(pipeline, session)
    assert session.stats.accepted == session.stats.drafted > 0


async def test_copies_of_one_request_differ_and_seeds_matter(write_table, drafters) -> None:
    pipeline = await pipeline_over(table_target(write_table("target", seed=1)), drafters["table"])
    params = SamplingParams(seed=3, max_tokens=30)
    copies = {await run(pipeline, pipeline.session(PROMPT, params, choice=i)) for i in range(4)}
    assert len(copies) == 4
    unseeded = SamplingParams(max_tokens=30)
    assert len({await run(pipeline, pipeline.session(PROMPT, unseeded)) for _ in range(4)}) == 4


async def test_the_joint_of_three_tokens_agrees_with_the_exact_one(write_table, drafters) -> None:
    file = write_table("target", seed=1, order=2, vocab_size=3)
    draft = TableDrafter(TableModel.load(write_table("draft", seed=2, vocab_size=3)))
    configured = settings(controller="fixed", lookahead=2)
    pipeline = await pipeline_over(table_target(file), draft, configured=configured)
    params = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=3)
    trials = 4000
    counts = np.zeros(27)
    for _ in range(trials):
        a, b, c = await run(pipeline, pipeline.session((0, 1), params))
        counts[9 * a + 3 * b + c] += 1
    exact = exact_joint(TableModel.load(file), params)
    assert counts[exact == 0].sum() == 0
    seen = counts > 0
    statistic = 2 * (counts[seen] * np.log(counts[seen] / (trials * exact[seen]))).sum()
    assert statistic < 61.7  # chi-square, 26 degrees of freedom, 99.99%


def exact_joint(model: TableModel, params: SamplingParams) -> np.ndarray:
    joint = np.zeros(27)

    def walk(tokens: tuple[int, ...], probability: float, index: int) -> None:
        if len(tokens) == 5:
            joint[index] += probability
            return
        row = warp(model.logits(tokens, len(tokens)), params).dense(3)
        for token in range(3):
            walk((*tokens, token), probability * row[token], 3 * index + token)

    walk((0, 1), 1.0, 0)
    return joint
