"""A draft model with ids of its own changes no output, and one that knows best is always right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from outrider.drafters.model import ModelDrafter
from outrider.engine import Decoder, EngineThread, load_model
from outrider.types import DrafterInfo, SamplingParams, VerificationMethod
from tests.drafters.vocabularies import tiny_translation, write_model
from tests.pipeline.scenes import run
from tests.targets.test_local import GREEDY, SEEDED, alone, pipeline_over, prompts
from tests.tiny import CONTEXT, VOCAB, tiny_lane

pytestmark = pytest.mark.anyio

LACKING = (28, 33, 34, 42)
TARGET_IDS = [-1, *reversed([i for i in range(VOCAB) if i not in LACKING])]
TRANSLATION = tiny_translation(TARGET_IDS, size=VOCAB)


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    engine = EngineThread(threads=1)
    yield engine
    engine.close()


def model(folder, rows=None) -> Decoder:
    written = write_model(folder, "{}", vocab_size=VOCAB, rows=rows)
    return load_model(written, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Decoder:
    return model(tmp_path_factory.mktemp("m") / "target")


@pytest.fixture(scope="module")
def same(tmp_path_factory) -> Decoder:
    """The target itself, in other ids and without some of them."""
    return model(tmp_path_factory.mktemp("m") / "draft", TARGET_IDS)


def drafter(engine: EngineThread, decoder: Decoder, name: str) -> ModelDrafter:
    info = DrafterInfo(name, deterministic=False, declares=True, context_length=CONTEXT)
    lane = tiny_lane(engine, decoder, num_slots=8, step_tokens=16)
    return ModelDrafter(
        lane, info, vocab_size=VOCAB, eos_token_ids=frozenset(), translation=TRANSLATION
    )


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("k", [1, 4, 8])
async def test_output_equals_the_target_computed_from_nothing(
    engine, target, same, k, sampling
) -> None:
    drafters = [drafter(engine, same, "same"), drafter(engine, same.truncated(1), "half")]
    lane = tiny_lane(engine, target, num_slots=8, step_tokens=16)
    pipeline = await pipeline_over(lane, *drafters, controller="fixed", lookahead=k)
    for prompt in prompts(3):
        expected = alone(target, prompt, sampling)
        for name in pipeline.drafter_names:
            session = pipeline.session(prompt, sampling, drafter=name)
            assert await run(pipeline, session) == expected
            assert session.stats.drafted > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_target_in_other_ids_is_right_where_it_has_the_token(
    engine, target, same, temperature
) -> None:
    """Nothing is said that the draft lacks, so both read the same."""
    lane = tiny_lane(engine, target, num_slots=8, step_tokens=16)
    pipeline = await pipeline_over(
        lane, drafter(engine, same, "same"), controller="fixed", lookahead=4
    )
    known = frozenset(i for i in TARGET_IDS if i >= 0)
    sampling = SamplingParams(
        temperature=temperature, seed=2, max_tokens=60, allowed_token_ids=known
    )
    session = pipeline.session((1, 2, 3), sampling)
    await run(pipeline, session)
    assert session.stats.accepted == session.stats.drafted > 40


@pytest.mark.parametrize("method", [VerificationMethod.TOKEN, VerificationMethod.BLOCK])
async def test_drafts_judged_by_ratios_are_mostly_accepted(engine, target, same, method) -> None:
    lane = tiny_lane(engine, target, num_slots=8, step_tokens=16)
    pipeline = await pipeline_over(
        lane,
        drafter(engine, same, "same"),
        controller="fixed",
        lookahead=4,
        verification=method.value,
    )
    known = frozenset(i for i in TARGET_IDS if i >= 0)
    sampling = SamplingParams(max_tokens=100, allowed_token_ids=known)
    session = pipeline.session((1, 2, 3), sampling)
    assert len(await run(pipeline, session)) == 100
    assert session.verification()[0] is method
    assert session.stats.accepted > 0.9 * session.stats.drafted > 10
