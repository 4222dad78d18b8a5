"""The target on the engine and a draft model beside it, against rows computed from nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import numpy as np
import pytest

from outrider.config import load_settings
from outrider.drafters import NgramDrafter
from outrider.drafters.model import ModelDrafter
from outrider.engine import Decoder, EngineThread, Lane
from outrider.errors import TargetFailed
from outrider.metrics import Metrics
from outrider.pipeline import Pipeline
from outrider.sampling import History, TokenSampler, noise_key
from outrider.sampling.device import DeviceSampler
from outrider.targets.local import LocalTarget
from outrider.types import DrafterInfo, SamplingParams, VerificationMethod
from tests.pipeline.scenes import run
from tests.tiny import CONTEXT, VOCAB, next_logits, tiny_decoder, tiny_info, tiny_lane

pytestmark = pytest.mark.anyio

GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
SEEDED = SamplingParams(temperature=0.8, top_p=0.95, seed=3, max_tokens=40)


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    engine = EngineThread(threads=1)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder(1, sharpness=3.0)


@pytest.fixture
def lane(engine, decoder) -> Lane:
    return tiny_lane(engine, decoder, num_slots=8, step_tokens=16)


def drafter(
    engine: EngineThread,
    decoder: Decoder,
    name: str,
    num_slots: int = 8,
    *,
    declares: bool = False,
) -> ModelDrafter:
    info = DrafterInfo(name=name, deterministic=False, declares=declares, context_length=CONTEXT)
    lane = tiny_lane(engine, decoder, num_slots=num_slots, step_tokens=16)
    return ModelDrafter(lane, info, vocab_size=VOCAB, eos_token_ids=frozenset())


async def pipeline_over(lane: Lane, *drafters, **speculation) -> Pipeline:
    target = LocalTarget(lane, tiny_info())
    described = [(one, await one.describe()) for one in drafters]
    return Pipeline(
        target,
        await target.describe(),
        {info.name: (one, info) for one, info in described},
        load_settings(None, {"speculation": speculation}),
        Metrics(),
    )


def alone(decoder: Decoder, prompt: tuple[int, ...], sampling: SamplingParams, choice=0) -> tuple:
    """The output by the definition: one token at a time, every row computed from nothing."""
    sampler = TokenSampler(sampling, noise_key(sampling.seed), choice)
    output: list[int] = []
    for _ in range(sampling.max_tokens):
        history = History(prompt, output)
        output.append(sampler.sample(next_logits(decoder, history.tokens).numpy(), history))
    return tuple(output)


def prompts(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    return [
        tuple(draw.randrange(VOCAB) for _ in range(draw.choice([1, 5, 20, 50])))
        for _ in range(count)
    ]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("k", [0, 1, 4, 8])
async def test_output_equals_the_model_computed_from_nothing(
    engine, decoder, lane, k, sampling
) -> None:
    drafters = [
        NgramDrafter(),
        drafter(engine, decoder, "self"),
        drafter(engine, decoder.truncated(1), "half"),
        drafter(engine, tiny_decoder(9), "stranger"),
    ]
    pipeline = await pipeline_over(lane, *drafters, controller="fixed", lookahead=k)
    (prompt,) = prompts(1)
    expected = alone(decoder, prompt, sampling)
    for name in pipeline.drafter_names:
        session = pipeline.session(prompt, sampling, drafter=name)
        assert await run(pipeline, session) == expected
    assert pipeline.occupancy() == (0, 8)


PROCESSED = SamplingParams(
    seed=4,
    max_tokens=40,
    min_p=0.01,
    frequency_penalty=0.5,
    repetition_penalty=1.2,
    logprobs=2,
)


@pytest.fixture
def _on_a_device(monkeypatch) -> None:
    """Rows are treated as if they lay on an accelerator."""
    for module in ("targets.local", "drafters.model"):
        monkeypatch.setattr(f"outrider.{module}.sampler_on", lambda device: DeviceSampler)


@pytest.mark.usefixtures("_on_a_device")
@pytest.mark.parametrize(
    "sampling", [GREEDY, SEEDED, PROCESSED], ids=["greedy", "seeded", "processed"]
)
async def test_rows_that_stay_on_a_device_give_the_same_output(
    engine, decoder, lane, sampling
) -> None:
    drafters = [drafter(engine, decoder.truncated(1), "half"), drafter(engine, decoder, "self")]
    pipeline = await pipeline_over(lane, *drafters, controller="fixed", lookahead=4)
    (prompt,) = prompts(1)
    for name in pipeline.drafter_names:
        session = pipeline.session(prompt, sampling, drafter=name)
        assert await run(pipeline, session) == alone(decoder, prompt, sampling)
        assert session.stats.drafted > 0


@pytest.mark.usefixtures("_on_a_device")
@pytest.mark.parametrize("method", [VerificationMethod.TOKEN, VerificationMethod.BLOCK])
async def test_ratios_are_judged_of_rows_that_stay_on_a_device(
    engine, decoder, lane, method
) -> None:
    same = drafter(engine, decoder, "self", declares=True)
    pipeline = await pipeline_over(
        lane, same, controller="fixed", lookahead=4, verification=method.value
    )
    session = pipeline.session((1, 2, 3), SamplingParams(max_tokens=100))
    assert len(await run(pipeline, session)) == 100
    assert session.verification()[0] is method
    assert session.stats.accepted > 0.9 * session.stats.drafted > 10


async def test_sessions_together_say_what_each_says_alone(engine, decoder, lane) -> None:
    drafters = [NgramDrafter(), drafter(engine, decoder.truncated(1), "half")]
    pipeline = await pipeline_over(lane, *drafters, controller="window", window=2)
    asked = prompts(8, seed=4)
    sessions = [
        pipeline.session(
            prompt, (GREEDY, SEEDED)[i % 2], choice=i, drafter=pipeline.drafter_names[i // 2 % 2]
        )
        for i, prompt in enumerate(asked)
    ]
    found = await asyncio.gather(*(run(pipeline, session) for session in sessions))
    expected = [
        alone(decoder, prompt, (GREEDY, SEEDED)[i % 2], choice=i) for i, prompt in enumerate(asked)
    ]
    assert list(found) == expected


async def test_a_model_that_drafts_for_itself_is_always_right(engine, decoder, lane) -> None:
    pipeline = await pipeline_over(
        lane, drafter(engine, decoder, "self"), controller="fixed", lookahead=4
    )
    for sampling in (GREEDY, SEEDED):
        session = pipeline.session((1, 2, 3), sampling)
        await run(pipeline, session)
        assert session.stats.accepted == session.stats.drafted > 10


async def test_a_draft_interrupted_by_its_deadline_does_not_spoil_the_next(
    engine, decoder, lane
) -> None:
    """The deadline falls anywhere: while the prompt is read, between tokens, within a step."""
    pipeline = await pipeline_over(
        lane, drafter(engine, decoder, "self"), controller="fixed", lookahead=8, deadline_ms=3
    )
    sampling = SamplingParams(seed=5, max_tokens=100)
    prompt = prompts(1, seed=7)[0] * 3
    session = pipeline.session(prompt, sampling)
    assert await run(pipeline, session) == alone(decoder, prompt, sampling)


async def test_closing_at_random_moments_frees_every_slot(engine, decoder, lane) -> None:
    one = drafter(engine, decoder.truncated(1), "half")
    pipeline = await pipeline_over(lane, one)
    draw = random.Random(2)

    async def cut(prompt: tuple[int, ...]) -> None:
        task = asyncio.create_task(run(pipeline, pipeline.session(prompt, GREEDY)))
        await asyncio.wait([task], timeout=draw.random() * 0.05)
        task.cancel()
        await asyncio.wait([task])

    for _ in range(5):
        await asyncio.gather(*(cut(prompt) for prompt in prompts(8, seed=draw.randrange(1000))))
    await pipeline._target.release("nobody")
    await engine.call(lambda: None)
    assert pipeline.occupancy() == (0, 8)
    assert one._lane.cache.num_free == 8
    assert pipeline._target._sessions == {}
    assert one._sessions == {}


async def test_more_sessions_than_draft_slots_decode_without_drafts(engine, decoder, lane) -> None:
    pipeline = await pipeline_over(lane, drafter(engine, decoder, "self", num_slots=1))
    asked = prompts(4, seed=5)
    found = await asyncio.gather(
        *(run(pipeline, pipeline.session(prompt, GREEDY)) for prompt in asked)
    )
    assert list(found) == [alone(decoder, prompt, GREEDY) for prompt in asked]


async def test_an_engine_fault_fails_the_request_and_frees_its_slot(
    engine, decoder, lane, monkeypatch
) -> None:
    pipeline = await pipeline_over(lane)

    def broken(chunks, cache):
        raise RuntimeError("broken pass")

    monkeypatch.setattr(lane.decoder, "forward", broken)
    with pytest.raises(TargetFailed, match="broken pass"):
        await run(pipeline, pipeline.session((1, 2), GREEDY))
    monkeypatch.undo()
    assert pipeline.occupancy() == (0, 8)
    assert await run(pipeline, pipeline.session((1, 2), GREEDY)) == alone(decoder, (1, 2), GREEDY)


async def test_a_round_feeds_new_tokens_only(engine, decoder, lane, monkeypatch) -> None:
    fed: list[int] = []
    forward = lane.decoder.forward

    def counting(chunks, cache):
        fed.extend(len(chunk.token_ids) for chunk in chunks)
        return forward(chunks, cache)

    monkeypatch.setattr(lane.decoder, "forward", counting)
    pipeline = await pipeline_over(lane, NgramDrafter(), controller="fixed", lookahead=4)
    session = pipeline.session(tuple(range(10)), GREEDY)
    await run(pipeline, session)
    assert sum(fed) == 10 + (session.stats.rounds - 1) + session.stats.drafted


async def test_greedy_choice_is_the_argmax_of_the_logits(decoder, lane) -> None:
    pipeline = await pipeline_over(lane)
    (token,) = await run(
        pipeline, pipeline.session((5,), SamplingParams(temperature=0.0, max_tokens=1))
    )
    assert token == int(np.argmax(next_logits(decoder, [5]).numpy()))
