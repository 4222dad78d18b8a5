"""The training data is what the served target says, and the rows are those it was drawn from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from outrider.engine import Lane
from outrider.errors import RequestError, TargetFailed, TrainingError
from outrider.metrics import Metrics
from outrider.pipeline import Pipeline
from outrider.targets import Target
from outrider.text import ChatTemplate, create_tokenizer
from outrider.train.answering import Answerer, Skipped, sampling_params
from outrider.train.data import source_of
from outrider.train.prompts import Prompt
from outrider.train.records import Example, Sampling, Source
from tests.pipeline.scenes import run, settings
from tests.train.toy import CONTEXT, VOCAB, toy_target, write_toy

pytestmark = pytest.mark.anyio

CHAT = Prompt("chat", turns=("Hello there",))
TEXT = Prompt("text", text="Once upon a time")
SAMPLING = Sampling(temperatures=(0.0, 0.8), top_p=0.95, seed=4, max_tokens=24)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Target, Lane]]:
    with toy_target(write_toy(tmp_path_factory.mktemp("toy"))) as made:
        yield made


async def answerer_over(
    toy: tuple[Target, Lane], sampling: Sampling = SAMPLING, k: int = 16
) -> tuple[Answerer, Source]:
    target, lane = toy
    info = await target.describe()
    source = source_of(info, [CHAT], sampling, k=k, temperatures=(1.3,), holdout=0.5)
    return Answerer(lane, info, source), source


async def said_by_pipeline(
    toy: tuple[Target, Lane], prompt_ids: tuple[int, ...], source: Source, prompt: Prompt, t: float
) -> tuple[int, ...]:
    """What a caller would get: the whole pipeline, without a draft."""
    target, _ = toy
    pipeline = Pipeline(target, await target.describe(), {}, settings(), Metrics())
    session = pipeline.session(prompt_ids, sampling_params(source, prompt, t, 0), enabled=False)
    return await run(pipeline, session)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("prompt", [CHAT, TEXT], ids=["chat", "text"])
async def test_an_answer_is_what_the_pipeline_gives_token_for_token(
    toy, prompt: Prompt, temperature: float
) -> None:
    answerer, source = await answerer_over(toy)
    info = await toy[0].describe()
    tokenizer = create_tokenizer(info)
    if prompt.chat:
        template = ChatTemplate(info.chat_template, info.special_tokens)
        text = template.render([{"role": "user", "content": prompt.turns[0]}])
        prompt_ids = tuple(tokenizer.encode(text, add_special_tokens=False))
    else:
        prompt_ids = tuple(tokenizer.encode(prompt.text, add_special_tokens=True))
    expected = await said_by_pipeline(toy, prompt_ids, source, prompt, temperature)
    example = await answerer.answer(prompt, temperature)
    assert isinstance(example, Example)
    assert tuple(example.token_ids.tolist()) == prompt_ids + expected
    assert tuple(example.generated_ids.tolist()) == expected
    assert example.generated.tolist() == [False] * len(prompt_ids) + [True] * len(expected)
    assert example.temperature == temperature


async def test_answers_are_the_same_alone_and_in_company(toy) -> None:
    answerer, _ = await answerer_over(toy)
    prompts = [Prompt("a", turns=(f"Question {n}",)) for n in range(9)]
    together = await asyncio.gather(*(answerer.answer(prompt, 0.8) for prompt in prompts))
    for prompt, example in zip(prompts, together, strict=True):
        alone = await answerer.answer(prompt, 0.8)
        assert isinstance(example, Example)
        assert isinstance(alone, Example)
        np.testing.assert_array_equal(example.token_ids, alone.token_ids)
        np.testing.assert_array_equal(example.support_ids, alone.support_ids)
        np.testing.assert_array_equal(example.support_logits, alone.support_logits)
        np.testing.assert_array_equal(example.logsumexps, alone.logsumexps)


async def test_each_row_is_the_targets_in_front_of_its_token(toy) -> None:
    answerer, source = await answerer_over(toy)
    target, _ = toy
    example = await answerer.answer(CHAT, 0.0)
    assert isinstance(example, Example)
    ids = tuple(example.token_ids.tolist())
    rows = await target.logits(ids, len(ids))
    places = np.flatnonzero(example.generated) - 1
    expected = rows[places]
    order = np.argsort(-expected, axis=1, kind="stable")[:, :16]
    np.testing.assert_array_equal(example.support_ids, order)
    np.testing.assert_array_equal(
        example.support_logits, np.take_along_axis(expected, order, axis=1)
    )
    assert source.temperatures == (0.8, 1.0, 1.3)
    for column, t in enumerate(source.temperatures):
        wanted = np.log(np.exp(expected.astype(np.float64) / t).sum(axis=1))
        np.testing.assert_allclose(example.logsumexps[:, column], wanted, rtol=1e-6)
    np.testing.assert_array_equal(example.support_ids[:, 0], example.generated_ids)


async def test_temperatures_and_prompts_have_noise_of_their_own_that_the_seed_fixes(toy) -> None:
    _, source = await answerer_over(toy)
    seeds = {
        sampling_params(
            replace(source, sampling=replace(SAMPLING, seed=seed)), prompt, t, turn
        ).seed
        for seed in (0, 1)
        for prompt in (CHAT, TEXT)
        for t in (0.5, 1.0)
        for turn in (0, 1)
    }
    assert len(seeds) == 16
    assert sampling_params(source, CHAT, 1.0, 0) == sampling_params(source, CHAT, 1.0, 0)


async def test_each_turn_is_answered_behind_the_tokens_of_the_answers_before(toy) -> None:
    answerer, _ = await answerer_over(toy)
    info = await toy[0].describe()
    tokenizer = create_tokenizer(info)
    # One that ends by itself and one that is cut off go on differently.
    for max_tokens in (1, 24):
        answerer, _ = await answerer_over(toy, replace(SAMPLING, max_tokens=max_tokens))
        for n in range(6):
            prompt = Prompt("a", turns=(f"First {n}", "Second"))
            example = await answerer.answer(prompt, 0.8)
            assert isinstance(example, Example)
            assert len(example.finish_reasons) == 2
            marks = np.flatnonzero(np.diff(example.generated.astype(int), prepend=0, append=0))
            assert len(marks) == 4
            first, asked = example.token_ids[: marks[1]], example.token_ids[marks[1] : marks[2]]
            between = "\n<|im_start|>user\nSecond<|im_end|>\n<|im_start|>assistant\n"
            if example.finish_reasons[0] == "length":
                between = "<|im_end|>" + between
            wanted = tokenizer.encode(between, add_special_tokens=False)
            assert asked.tolist() == wanted
            alone = await answerer.answer(prompt, 0.8)
            assert isinstance(alone, Example)
            np.testing.assert_array_equal(first, alone.token_ids[: marks[1]])
            assert len(example.support_ids) == example.generated.sum()


async def test_a_template_that_rewrites_what_was_said_ends_the_conversation(tmp_path) -> None:
    forgetful = (
        "{% for message in messages %}{% if message['role'] == 'user' %}"
        "<|im_start|>{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}<|im_start|>"
    )
    with toy_target(write_toy(tmp_path, template=forgetful)) as toy:
        answerer, _ = await answerer_over(toy)
        example = await answerer.answer(Prompt("a", turns=("One", "Two")), 0.8)
        assert isinstance(example, Example)
        assert len(example.finish_reasons) == 1


async def test_a_prompt_longer_than_the_context_is_left_out(toy) -> None:
    answerer, _ = await answerer_over(toy)
    assert await answerer.answer(Prompt("a", text="x " * CONTEXT), 0.0) is Skipped.TOO_LONG


async def test_a_turn_that_no_longer_fits_ends_the_conversation(toy) -> None:
    answerer, _ = await answerer_over(toy)
    example = await answerer.answer(Prompt("a", turns=("One", "x " * CONTEXT)), 0.0)
    assert isinstance(example, Example)
    assert len(example.finish_reasons) == 1
    assert example.generated[-1]


async def test_an_answer_ends_where_the_context_does(toy) -> None:
    answerer, _ = await answerer_over(toy, replace(SAMPLING, max_tokens=100_000))
    example = await answerer.answer(Prompt("a", text="x" * (CONTEXT - 3)), 0.0)
    assert isinstance(example, Example)
    assert len(example.token_ids) <= CONTEXT


async def test_a_prompt_that_the_template_refuses_is_left_out(tmp_path) -> None:
    strict = "{{ raise_exception('no') }}"
    with toy_target(write_toy(tmp_path, template=strict)) as toy:
        answerer, _ = await answerer_over(toy)
        assert await answerer.answer(CHAT, 0.0) is Skipped.REFUSED


async def test_a_model_without_a_template_is_asked_no_chats(tmp_path) -> None:
    with toy_target(write_toy(tmp_path, template=None)) as toy:
        answerer, _ = await answerer_over(toy)
        with pytest.raises(TrainingError, match="no chat template"):
            answerer.check([TEXT, CHAT])
        answerer.check([TEXT])
        assert isinstance(await answerer.answer(TEXT, 0.0), Example)


async def test_settings_that_mean_nothing_are_refused_at_once(toy) -> None:
    answerer, _ = await answerer_over(toy, replace(SAMPLING, top_p=0.0))
    with pytest.raises(RequestError, match="top_p"):
        answerer.check([CHAT])


async def test_more_conversations_than_slots_wait_for_room(toy) -> None:
    answerer, _ = await answerer_over(toy)
    _, lane = toy
    asked = [Prompt("a", turns=(f"Number {n}",)) for n in range(3 * lane.num_slots)]
    answers = await asyncio.gather(*(answerer.answer(prompt, 0.0) for prompt in asked))
    assert all(isinstance(answer, Example) for answer in answers)


async def test_no_more_is_kept_of_a_row_than_it_has(toy) -> None:
    answerer, source = await answerer_over(toy, k=4096)
    assert source.k == VOCAB
    example = await answerer.answer(CHAT, 0.0)
    assert isinstance(example, Example)
    assert sorted(example.support_ids[0].tolist()) == list(range(VOCAB))


async def test_an_engine_that_fails_is_told(toy, monkeypatch) -> None:
    answerer, _ = await answerer_over(toy)
    _, lane = toy

    def broken(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(lane.decoder, "forward", broken)
    with pytest.raises(TargetFailed, match="out of order"):
        await answerer.answer(CHAT, 0.0)
