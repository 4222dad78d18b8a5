"""A pipeline over a table, asked in this process."""

from __future__ import annotations

import itertools

import pytest

from outrider.bench import Counting, PipelineSubject, Question
from outrider.config import Settings
from outrider.errors import ConfigError, RequestError
from outrider.pipeline import create_pipeline

pytestmark = pytest.mark.anyio

TEXT = Question(text="0 1 2")
FIELDS = {"max_tokens": 12, "temperature": 0}


@pytest.fixture
async def pipeline(write_table):
    target, draft = write_table("target", seed=1), write_table("draft", seed=1)
    settings = Settings(
        engine={"target": f"table:{target}"},
        speculation={"drafts": [f"table:{draft}"], "controller": "fixed", "lookahead": 3},
    )
    made = await create_pipeline(settings)
    yield made
    await made.close()


def subject(pipeline, **fields) -> PipelineSubject:
    ticks = itertools.count()
    return PipelineSubject(pipeline, {**FIELDS, **fields}, "it", lambda: float(next(ticks)))


async def test_every_step_is_a_chunk_with_its_tokens(pipeline) -> None:
    answer = await subject(pipeline).ask(TEXT)
    assert answer.counting is Counting.STEPS
    assert answer.tokens == sum(chunk.tokens for chunk in answer.chunks) == 12
    assert [chunk.at for chunk in answer.chunks] == [float(n + 1) for n in range(4)]
    assert (answer.prompt_tokens, answer.finish_reason) == (3, "length")
    assert answer.drafts.accepted == answer.drafts.drafted > 0
    assert answer.drafts.rounds == len(answer.chunks)


async def test_speculation_is_switched_by_the_requests_fields(pipeline) -> None:
    plain = await subject(pipeline, speculation={"enabled": False}).ask(TEXT)
    drafted = await subject(pipeline).ask(TEXT)
    assert plain.drafts.drafted == 0
    assert [chunk.tokens for chunk in plain.chunks] == [1] * 12
    assert plain.text == drafted.text


@pytest.mark.parametrize(
    "fields",
    [{"stop": "x"}, {"temperature": "hot"}, {"speculation": {"lookahead": 3}}],
)
async def test_a_field_that_has_no_meaning_here_is_refused_at_once(pipeline, fields) -> None:
    with pytest.raises(ConfigError, match="it knows temperature"):
        subject(pipeline, **fields)


async def test_a_chat_needs_a_template(pipeline) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        await subject(pipeline).ask(Question(messages=({"role": "user", "content": "0"},)))
