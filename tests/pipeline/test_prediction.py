"""Sessions that come with a prediction of their output."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from outrider.drafters import TableDrafter
from outrider.errors import RequestError
from outrider.models import TableModel
from outrider.types import SamplingParams, VerificationMethod
from tests.pipeline.scenes import (
    GREEDY,
    PROMPT,
    ScriptedDrafter,
    alone,
    pipeline_over,
    right,
    run,
    settings,
    table_target,
)

pytestmark = pytest.mark.anyio

FIXED = settings(controller="fixed", lookahead=4)


def silent() -> ScriptedDrafter:
    return ScriptedDrafter(lambda view, k: ())


async def test_a_right_prediction_is_drafted_and_counted(file) -> None:
    drafter = silent()
    pipeline = await pipeline_over(table_target(file), drafter, configured=FIXED)
    output = alone(file, PROMPT, GREEDY)
    session = pipeline.session(PROMPT, GREEDY, prediction=output)
    assert await run(pipeline, session) == output
    stats = session.stats
    assert stats.predicted == stats.predicted_accepted == stats.drafted > 25
    assert stats.rounds <= 10
    assert drafter.asked == []
    assert drafter.released == [session.session_id]
    assert not drafter.closed


async def test_only_drafts_from_the_prediction_count_as_predicted(file) -> None:
    output = alone(file, PROMPT, GREEDY)
    other = ScriptedDrafter(right(file))
    pipeline = await pipeline_over(table_target(file), other, configured=FIXED)
    session = pipeline.session(PROMPT, GREEDY, prediction=output[:15])
    assert await run(pipeline, session) == output
    assert 0 < session.stats.predicted < session.stats.drafted
    assert session.stats.predicted_accepted == session.stats.predicted
    assert other.asked


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(seed=5, max_tokens=40)])
@pytest.mark.parametrize("kind", ["right", "edited", "wrong", "random", "huge", "empty"])
async def test_the_output_is_the_same_with_any_prediction(file, sampling, kind: str) -> None:
    draw = random.Random(1)
    output = alone(file, PROMPT, sampling)
    prediction = {
        "right": output,
        "edited": (*output[:9], 0, *output[12:20], *output[5:30]),
        "wrong": (4,) * 40,
        "random": tuple(draw.randrange(5) for _ in range(60)),
        "huge": tuple(draw.randrange(5) for _ in range(50_000)),
        "empty": (),
    }[kind]
    pipeline = await pipeline_over(table_target(file), silent(), configured=FIXED)
    session = pipeline.session(PROMPT, sampling, prediction=prediction)
    assert await run(pipeline, session) == output
    assert session.stats.predicted_accepted <= session.stats.predicted
    assert session.stats.failures == 0


async def test_a_prediction_of_ids_outside_the_vocabulary_costs_only_drafts(file) -> None:
    pipeline = await pipeline_over(table_target(file), silent(), configured=FIXED)
    session = pipeline.session(PROMPT, GREEDY, prediction=(77,) * 9)
    assert await run(pipeline, session) == alone(file, PROMPT, GREEDY)
    assert session.stats.drafted == 0


@pytest.mark.parametrize(
    "asked", [{"drafter": "scripted"}, {"enabled": False}, {"max_lookahead": 0}]
)
async def test_a_request_that_chose_its_drafts_gets_none_from_the_prediction(file, asked) -> None:
    pipeline = await pipeline_over(table_target(file), silent(), configured=FIXED)
    session = pipeline.session(PROMPT, GREEDY, prediction=alone(file, PROMPT, GREEDY), **asked)
    await run(pipeline, session)
    assert session.prediction == ()
    assert session.stats.drafted == 0


async def test_without_drafters_a_prediction_is_not_drafted(file) -> None:
    pipeline = await pipeline_over(table_target(file))
    output = alone(file, PROMPT, GREEDY)
    session = pipeline.session(PROMPT, GREEDY, prediction=output)
    assert await run(pipeline, session) == output
    assert session.stats.drafted == 0


async def test_drafts_beside_a_prediction_are_matched_whatever_the_drafter_declares(
    file, write_table
) -> None:
    drafter = TableDrafter(TableModel.load(write_table("draft", seed=1, order=2)))
    pipeline = await pipeline_over(table_target(file), drafter, configured=FIXED)
    sampled = SamplingParams(max_tokens=40)
    session = pipeline.session(PROMPT, sampled, prediction=(0, 1, 2, 3))
    assert len(await run(pipeline, session)) == 40
    assert session.stats.drafted > session.stats.predicted
    assert session.stats.ratio_drafted == 0
    assert session.verification()[0] is VerificationMethod.MATCHING


async def test_ratios_that_were_asked_for_by_name_do_not_go_with_a_prediction(
    file, write_table
) -> None:
    drafter = TableDrafter(TableModel.load(write_table("draft", seed=1, order=2)))
    pipeline = await pipeline_over(table_target(file), drafter)
    with pytest.raises(RequestError, match="verification is block"):
        pipeline.session(
            PROMPT,
            replace(GREEDY, temperature=1.0),
            prediction=(0, 1),
            verification=VerificationMethod.BLOCK,
        )
