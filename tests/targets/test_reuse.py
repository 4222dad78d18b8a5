"""Requests that begin as earlier ones did, and the memory that this takes, on the tiny model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from outrider.config import load_settings
from outrider.drafters.model import ModelDrafter
from outrider.engine import Decoder, EngineThread, Lane
from outrider.errors import ContextLengthExceeded, Overloaded, RequestError, TargetFailed
from outrider.metrics import Metrics
from outrider.pipeline import Pipeline, Session
from outrider.targets import OpenRequest
from outrider.targets.local import LocalTarget
from outrider.types import DrafterInfo, Exactness, SamplingParams
from tests.pipeline.scenes import run
from tests.targets.test_local import alone, pipeline_over
from tests.tiny import CONTEXT, VOCAB, tiny_decoder, tiny_info, tiny_lane

pytestmark = pytest.mark.anyio

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
SYSTEM = tuple(index * 7 % VOCAB for index in range(60))


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    engine = EngineThread(threads=1)
    yield engine
    engine.close()


@pytest.fixture
def decoder() -> Decoder:
    return tiny_decoder(1, sharpness=3.0)


@pytest.fixture
def lane(engine, decoder) -> Lane:
    return tiny_lane(engine, decoder, num_slots=8, step_tokens=16)


def fed(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every chunk that is computed from now on."""
    sizes: list[int] = []
    forward = decoder.forward

    def counting(chunks, cache):
        sizes.extend(len(chunk.token_ids) for chunk in chunks)
        return forward(chunks, cache)

    monkeypatch.setattr(decoder, "forward", counting)
    return sizes


def request(prompt: tuple[int, ...], session_id: str = "s", max_tokens: int = 12) -> OpenRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return OpenRequest(session_id, 0, prompt, (), sampling, noise_key=1)


async def answer(
    pipeline: Pipeline, prompt: tuple[int, ...], tenant: str = "", sampling: SamplingParams = GREEDY
) -> Session:
    """A finished session, whose output is what the model says computed from nothing."""
    session = pipeline.session(prompt, sampling, tenant=tenant)
    output = await run(pipeline, session)
    assert output == alone(tiny_decoder(1, sharpness=3.0), prompt, sampling)
    return session


async def test_a_shared_beginning_is_not_computed_again(decoder, lane, monkeypatch) -> None:
    pipeline = await pipeline_over(lane)
    assert (await answer(pipeline, (*SYSTEM, 1, 2, 3))).cached_tokens == 0
    sizes = fed(decoder, monkeypatch)
    assert (await answer(pipeline, (*SYSTEM, 4, 5))).cached_tokens == 60
    assert sum(sizes) == 2 + 11


async def test_a_growing_chat_computes_only_what_is_new(decoder, lane, monkeypatch) -> None:
    pipeline = await pipeline_over(lane)
    chat = SYSTEM
    for turn in range(4):
        session = await answer(pipeline, chat)
        # All but the last token of the answer before, which nothing followed.
        assert session.cached_tokens == (0 if turn == 0 else len(chat) - 4)
        chat = (*chat, *session.output_ids, 1, 2, 3)
    assert lane.cache.num_retained == 1


async def test_a_seeded_request_says_the_same_with_and_without_reuse(lane) -> None:
    pipeline = await pipeline_over(lane)
    sampling = SamplingParams(temperature=0.9, seed=5, max_tokens=20)
    first = await answer(pipeline, SYSTEM, sampling=sampling)
    second = await answer(pipeline, SYSTEM, sampling=sampling)
    assert (first.cached_tokens, second.cached_tokens) == (0, 59)
    assert first.output_ids == second.output_ids


async def test_what_holds_of_a_reused_beginning_is_said_with_its_condition(lane) -> None:
    pipeline = await pipeline_over(lane)
    cold, warm = await answer(pipeline, SYSTEM), await answer(pipeline, SYSTEM)
    assert cold.verification()[1:] == (Exactness.IDENTICAL, None)
    exact, reason = warm.verification()[1:]
    assert exact is Exactness.IDENTICAL
    assert reason is not None
    assert "rounding" in reason


async def test_nothing_is_shared_between_tenants(lane) -> None:
    pipeline = await pipeline_over(lane)
    await answer(pipeline, SYSTEM, tenant="a")
    assert (await answer(pipeline, SYSTEM, tenant="b")).cached_tokens == 0
    assert (await answer(pipeline, SYSTEM, tenant="a")).cached_tokens == 59


async def test_a_draft_model_reuses_beginnings_too(engine, decoder, lane, monkeypatch) -> None:
    drafts = decoder.truncated(1)
    info = DrafterInfo("half", deterministic=False, declares=True, context_length=CONTEXT)
    drafter = ModelDrafter(
        tiny_lane(engine, drafts, step_tokens=16), info, vocab_size=VOCAB, eos_token_ids=frozenset()
    )
    pipeline = await pipeline_over(lane, drafter, controller="fixed", lookahead=3)
    sizes = fed(drafts, monkeypatch)
    await answer(pipeline, (*SYSTEM, 1, 2, 3))
    cold = sum(sizes)
    sizes.clear()
    await answer(pipeline, (*SYSTEM, 4, 5, 6))
    assert sum(sizes) < cold - 50
    sizes.clear()
    await answer(pipeline, (*SYSTEM, 4, 5, 6), tenant="b")
    assert sum(sizes) > cold - 10
    await drafter.close()
    cache = drafter._lane.cache
    assert (cache.num_free, cache.bytes_in_use, cache.bytes_retained) == (4, 0, 0)


async def test_any_mix_of_beginnings_cancels_and_tenants_says_what_the_model_says(
    engine, decoder
) -> None:
    lane = Lane(engine, decoder, num_slots=6, max_length=CONTEXT, step_tokens=16, kv_tokens=600)
    pipeline = await pipeline_over(lane)
    draw = random.Random(4)
    stems = [tuple(draw.randrange(VOCAB) for _ in range(30)) for _ in range(2)]
    asked = [
        (*draw.choice(stems), *(draw.randrange(3) for _ in range(draw.randrange(12))))
        for _ in range(20)
    ]
    expected = {prompt: alone(decoder, prompt, GREEDY) for prompt in asked}
    reused = 0

    async def one() -> None:
        nonlocal reused
        prompt = draw.choice(asked)
        session = pipeline.session(prompt, GREEDY, tenant=draw.choice("ab"))
        task = asyncio.create_task(run(pipeline, session))
        await asyncio.wait([task], timeout=draw.choice([0.002, 0.01, None]))
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            assert task.result() == expected[prompt]
        assert session.output_ids == expected[prompt][: session.output_length]
        reused += session.cached_tokens

    for _ in range(15):
        await asyncio.gather(*(one() for _ in range(6)))
    await engine.call(lambda: None)
    cache = lane.cache
    assert reused > 500
    assert (cache.num_free, cache.bytes_in_use, cache._promised) == (6, 0, 0)
    assert 0 < cache.bytes_retained <= 600 * cache.bytes_per_token
    assert len(cache._index) == cache.num_retained


async def test_a_session_that_failed_is_not_reused(decoder, lane, monkeypatch) -> None:
    pipeline = await pipeline_over(lane)
    forward, calls = decoder.forward, iter(range(100))

    def failing(chunks, cache):
        if next(calls) == 6:  # the prompt is read by then
            raise RuntimeError("out of memory")
        return forward(chunks, cache)

    monkeypatch.setattr(decoder, "forward", failing)
    with pytest.raises(TargetFailed):
        await run(pipeline, pipeline.session(SYSTEM, GREEDY))
    monkeypatch.undo()
    assert pipeline.occupancy() == (0, 8)
    assert (await answer(pipeline, SYSTEM)).cached_tokens == 0


async def test_closing_frees_sessions_that_run_and_what_is_kept(decoder) -> None:
    lane = tiny_lane(EngineThread(threads=1), decoder)
    target = LocalTarget(lane, tiny_info())
    pipeline = Pipeline(target, tiny_info(), {}, load_settings(), Metrics())
    await answer(pipeline, SYSTEM)
    await target.open(request(SYSTEM))
    await target.close()
    use = target.cache_use()
    assert (use.used_bytes, use.retained_bytes, target.occupancy()[0]) == (0, 0, 0)
    await target.release("s")
    with pytest.raises(TargetFailed):
        await target.open(request(SYSTEM))


async def test_an_open_that_fails_holds_nothing(lane) -> None:
    target = LocalTarget(lane, tiny_info())
    with pytest.raises(RequestError):
        await target.open(request((1, -1)))
    with pytest.raises(ContextLengthExceeded):
        await target.open(request(SYSTEM, max_tokens=CONTEXT))
    assert target.occupancy() == (0, 8)
    assert target.cache_use().used_bytes == 0
    assert lane.cache._promised == 0


async def test_a_session_that_could_not_be_made_takes_no_slot(lane, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no session")

    monkeypatch.setattr("outrider.targets.local.TargetSession", broken)
    with pytest.raises(RuntimeError, match="no session"):
        await LocalTarget(lane, tiny_info()).open(request(SYSTEM))
    assert lane.cache.num_free == 8


async def test_sessions_that_do_not_fit_now_are_refused_until_one_ends(engine, decoder) -> None:
    lane = Lane(engine, decoder, num_slots=8, max_length=CONTEXT, step_tokens=16, kv_tokens=150)
    target = LocalTarget(lane, tiny_info())
    await target.open(request(SYSTEM, "one"))
    await target.open(request(SYSTEM, "two"))
    with pytest.raises(Overloaded, match="72 tokens do not fit now: 144 of the 150"):
        await target.open(request(SYSTEM, "three"))
    await target.release("one")
    await target.open(request(SYSTEM, "three"))
    assert target.cache_use().tokens == 150


async def test_a_request_that_never_fits_is_refused_before_anything_starts(engine, decoder) -> None:
    lane = Lane(engine, decoder, num_slots=8, max_length=CONTEXT, step_tokens=16, kv_tokens=100)
    pipeline = await pipeline_over(lane)
    with pytest.raises(
        ContextLengthExceeded, match=r"cache memory for 100.*--kv-memory"
    ) as refused:
        pipeline.session(SYSTEM, SamplingParams(max_tokens=41))
    assert refused.value.param == "max_tokens"
    pipeline.session(SYSTEM, SamplingParams(max_tokens=40))


async def test_reuse_is_counted(lane) -> None:
    pipeline = await pipeline_over(lane)
    for _ in range(3):
        await answer(pipeline, SYSTEM)
    read = pipeline.metrics.registry.get_sample_value
    assert read("outrider_prompt_tokens_total") == 180
    assert read("outrider_cached_prompt_tokens_total") == 2 * 59
    assert read("outrider_prefix_hits_total") == 2
