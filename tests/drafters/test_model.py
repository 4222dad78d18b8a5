"""A draft model on the engine, against rows computed from nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from outrider.drafters import DeclaringDrafter, SessionView
from outrider.drafters.model import ModelDrafter
from outrider.engine import Decoder, EngineThread, Lane
from outrider.errors import DraftFailed
from outrider.sampling import History, TokenSampler
from outrider.types import NO_DRAFT, Draft, DrafterInfo, SampledDraft, SamplingParams
from tests.tiny import CONTEXT, VOCAB, next_logits, tiny_decoder, tiny_lane

pytestmark = pytest.mark.anyio

PROMPT = tuple(range(40))


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder(3, sharpness=2.0)


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    engine = EngineThread(threads=1)
    yield engine
    engine.close()


@pytest.fixture
def drafter(engine, decoder) -> ModelDrafter:
    info = DrafterInfo("tiny", deterministic=False, declares=True)
    lane = tiny_lane(engine, decoder, num_slots=2, step_tokens=16)
    return ModelDrafter(lane, info, vocab_size=VOCAB, eos_token_ids=frozenset())


def view(
    tokens, session_id: str = "s", guess: tuple[int, ...] = (), **params: object
) -> SessionView:
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    length, prompt = len(tokens), len(PROMPT)
    return SessionView(session_id, tokens, length, prompt, sampling, noise_key=9, guess=guess)


def held(drafter: ModelDrafter) -> int:
    """Tokens that the cache holds of the session."""
    slot = drafter._sessions["s"].slot
    return drafter._lane.cache.length(slot)


def fail_once(decoder: Decoder, monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Let the pass behind so many good ones fail."""
    calls = iter(range(100))
    forward = decoder.forward

    def failing(chunks, cache):
        if next(calls) == after:
            raise RuntimeError("out of memory")
        return forward(chunks, cache)

    monkeypatch.setattr(decoder, "forward", failing)


async def check_rows(decoder: Decoder, tokens, draft: SampledDraft, **params: object) -> None:
    """Every declared row is the head of the processed row behind what precedes its token."""
    sampler = TokenSampler(SamplingParams(**params), 0)  # type: ignore[arg-type]
    for index, row in enumerate(draft.rows):
        history = History(PROMPT, [*tokens[len(PROMPT) :], *draft.token_ids[:index]])
        logits = next_logits(decoder, history.tokens).numpy()
        expected = sampler.support(logits, history).dense(VOCAB)
        np.testing.assert_allclose(row.probs(), expected[row.token_ids], atol=2e-5)


def test_it_can_declare(drafter) -> None:
    assert isinstance(drafter, DeclaringDrafter)


async def test_it_declares_what_it_draws_from_round_after_round(drafter, decoder) -> None:
    params = {"temperature": 0.9, "frequency_penalty": 0.7, "repetition_penalty": 1.2}
    tokens = [*PROMPT, 5]
    for committed in (0, 2, 4):  # of the draft before: nothing, a part, all of it
        draft = await drafter.draw(view(tokens, **params), 4)
        assert isinstance(draft, SampledDraft)
        assert len(draft) == 4
        await check_rows(decoder, tokens, draft, **params)
        tokens = [*tokens, *draft.token_ids[:committed], 7]


async def test_two_drafts_behind_the_same_tokens_are_drawn_independently(drafter) -> None:
    tokens = [*PROMPT, 5]
    drafts = {(await drafter.draw(view(tokens), 4)).token_ids for _ in range(10)}
    assert len(drafts) > 5


async def test_a_matched_draft_is_sampled_with_the_sessions_noise(drafter, decoder) -> None:
    tokens = [*PROMPT, 5]
    seen = view(tokens, presence_penalty=1.0)
    sampler = TokenSampler(seen.sampling, 9)
    history = History(PROMPT, (5,))
    for _ in range(4):
        logits = next_logits(decoder, history.tokens).numpy()
        history.extend((sampler.sample(logits, history),))
    draft = await drafter.propose(seen, 4)
    assert isinstance(draft, Draft)
    assert list(draft.token_ids) == history.tokens[len(tokens) :]


async def test_getting_ready_reads_a_long_prompt_and_draws_nothing(drafter, decoder) -> None:
    tokens = [*PROMPT, 5]
    await drafter.prepare(view(tokens))
    assert held(drafter) == len(tokens) - 1
    draft = await drafter.draw(view(tokens), 2)
    await check_rows(decoder, tokens, draft)


async def test_getting_ready_leaves_a_few_new_tokens_to_be_read_along_the_way(drafter) -> None:
    tokens = [*PROMPT, 5]
    await drafter.prepare(view(tokens))
    await drafter.prepare(view([*tokens, 6, 7]))
    assert held(drafter) == len(tokens) - 1


async def test_a_read_that_failed_is_taken_up_again_before_anything_is_drawn(
    drafter, decoder, monkeypatch
) -> None:
    tokens = [*PROMPT, 5]
    fail_once(decoder, monkeypatch, after=1)
    with pytest.raises(DraftFailed):
        await drafter.prepare(view(tokens))
    assert held(drafter) < len(tokens) - 1
    await drafter.prepare(view(tokens))
    assert held(drafter) == len(tokens) - 1


async def test_a_pass_that_fails_on_the_way_leaves_what_was_drawn_before_it(
    drafter, decoder, monkeypatch
) -> None:
    tokens = [*PROMPT, 5]
    await drafter.prepare(view(tokens))
    fail_once(decoder, monkeypatch, after=2)
    draft = await drafter.draw(view(tokens), 4)
    assert isinstance(draft, SampledDraft)
    assert len(draft) == 2
    monkeypatch.undo()
    await check_rows(decoder, tokens, draft)


async def test_a_pass_that_fails_before_anything_is_drawn_is_a_failed_draft(
    drafter, decoder, monkeypatch
) -> None:
    def failing(chunks, cache):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(decoder, "forward", failing)
    with pytest.raises(DraftFailed, match="RuntimeError: out of memory"):
        await drafter.draw(view([*PROMPT, 5]), 4)
    monkeypatch.undo()
    assert len(await drafter.draw(view([*PROMPT, 5]), 4)) == 4


async def test_rows_that_are_no_numbers_are_a_failed_draft(drafter, decoder, monkeypatch) -> None:
    forward = decoder.forward
    monkeypatch.setattr(
        decoder,
        "forward",
        lambda chunks, cache: [rows * torch.nan for rows in forward(chunks, cache)],
    )
    with pytest.raises(DraftFailed, match="weights are broken"):
        await drafter.draw(view([*PROMPT, 5]), 4)


async def test_without_room_for_the_session_there_is_no_draft(drafter) -> None:
    tokens = [*PROMPT, 5]
    for session in ("a", "b"):
        await drafter.propose(view(tokens, session), 1)
    with pytest.raises(DraftFailed, match="tiny: "):
        await drafter.prepare(view(tokens, "c"))
    await drafter.release("a")
    await drafter.prepare(view(tokens, "c"))


async def test_nothing_is_drafted_where_nothing_is_wanted(drafter) -> None:
    assert await drafter.draw(view([*PROMPT, 5]), 0) is NO_DRAFT


async def test_drafts_of_several_sessions_share_their_passes(engine, decoder, monkeypatch) -> None:
    lane = tiny_lane(engine, decoder, num_slots=4)
    info = DrafterInfo("tiny", deterministic=False, declares=True)
    drafter = ModelDrafter(lane, info, vocab_size=VOCAB, eos_token_ids=frozenset())
    passes: list[int] = []
    forward = decoder.forward

    def counting(chunks, cache):
        passes.append(len(chunks))
        return forward(chunks, cache)

    monkeypatch.setattr(decoder, "forward", counting)
    views = [view([*PROMPT[:20], index], str(index)) for index in range(4)]
    for each in views:
        await drafter.propose(each, 1)
    passes.clear()
    hold = threading.Event()
    engine.post(hold.wait)  # all are asked before the first pass
    asked = [asyncio.create_task(drafter.propose(each, 5)) for each in views]
    await asyncio.sleep(0)
    hold.set()
    drafts = await asyncio.gather(*asked)
    assert passes == [4] * 5
    assert [len(draft) for draft in drafts] == [5] * 4


async def test_without_memory_for_the_session_there_is_no_draft(engine, decoder) -> None:
    lane = Lane(engine, decoder, num_slots=4, max_length=CONTEXT, step_tokens=16, kv_tokens=CONTEXT)
    info = DrafterInfo("tiny", deterministic=False, declares=True)
    drafter = ModelDrafter(lane, info, vocab_size=VOCAB, eos_token_ids=frozenset())
    tokens = [*PROMPT, 5]
    await drafter.propose(view(tokens, "a", max_tokens=150), 1)
    with pytest.raises(DraftFailed, match="tiny: 110 tokens do not fit now"):
        await drafter.propose(view(tokens, "b", max_tokens=70), 1)
    await drafter.release("a")
    await drafter.propose(view(tokens, "b", max_tokens=70), 1)


async def test_a_session_longer_than_its_context_is_drafted_for_as_far_as_it_goes(drafter) -> None:
    tokens = [*PROMPT, 5]
    draft = await drafter.propose(view(tokens, max_tokens=10 * CONTEXT), 3)
    assert len(draft) == 3


async def test_a_new_session_takes_over_what_an_ended_one_read(drafter, decoder) -> None:
    tokens = [*PROMPT, 5]
    await drafter.propose(view(tokens), 2)
    await drafter.release("s")
    await drafter.prepare(view(tokens))
    assert held(drafter) == len(PROMPT) - 1  # the last one is left to be fed
    await check_rows(decoder, tokens, await drafter.draw(view(tokens), 3))


async def test_a_session_whose_pass_failed_leaves_nothing_to_take_over(
    drafter, decoder, monkeypatch
) -> None:
    tokens = [*PROMPT, 5]
    await drafter.prepare(view(tokens))
    fail_once(decoder, monkeypatch, after=0)
    with pytest.raises(DraftFailed):
        await drafter.draw(view(tokens), 2)
    await drafter.release("s")
    assert drafter._lane.cache.num_retained == 0


async def test_closing_frees_every_slot_and_what_is_kept(drafter) -> None:
    for session in ("a", "b"):
        await drafter.propose(view([*PROMPT, 5], session), 1)
    await drafter.release("a")
    await drafter.close()
    cache = drafter._lane.cache
    assert (cache.num_free, cache.bytes_in_use, cache.bytes_retained) == (2, 0, 0)


async def fresh(decoder: Decoder, seen: SessionView, count: int) -> tuple[int, ...]:
    """The draft behind committed and guessed tokens, computed from nothing."""
    tokens = [*seen.tokens, *seen.guess]
    history = History(tokens[: len(PROMPT)], tokens[len(PROMPT) :])
    sampler = TokenSampler(seen.sampling, 9)
    for _ in range(count):
        row = next_logits(decoder, history.tokens).numpy()
        history.extend((sampler.sample(row, history),))
    return tuple(history.tokens[len(tokens) :])


async def test_a_draft_behind_a_guess_is_that_behind_the_same_tokens_committed(
    drafter, decoder
) -> None:
    tokens = [*PROMPT, 5]
    seen = view(tokens, guess=(6, 7, 8), presence_penalty=0.5)
    for _ in range(2):
        draft = await drafter.propose(seen, 4)
        assert draft.token_ids == await fresh(decoder, seen, 4)


@pytest.mark.parametrize("came", [(6, 7, 8), (6, 7), (6, 9), (9,)])
async def test_a_guess_is_forgotten_but_for_what_came_true(drafter, decoder, came) -> None:
    tokens = [*PROMPT, 5]
    await drafter.propose(view(tokens, guess=(6, 7, 8)), 3)
    tokens = [*tokens, *came]
    for guess in ((), (3,)):
        seen = view(tokens, guess=guess)
        assert (await drafter.propose(seen, 3)).token_ids == await fresh(decoder, seen, 3)


async def test_a_guess_that_comes_true_has_been_read_already(drafter, decoder, monkeypatch) -> None:
    tokens = [*PROMPT, 5]
    await drafter.propose(view(tokens, guess=(6, 7, 8)), 1)
    fed: list[int] = []
    forward = decoder.forward

    def counting(chunks, cache):
        fed.extend(len(chunk.token_ids) for chunk in chunks)
        return forward(chunks, cache)

    monkeypatch.setattr(decoder, "forward", counting)
    await drafter.propose(view([*tokens, 6, 7, 8, 9]), 1)
    assert fed == [1]


async def test_a_view_that_is_shorter_than_one_before_is_drafted_behind_as_it_is(
    drafter, decoder
) -> None:
    """A request that is overtaken by a later one still means what it says."""
    tokens = [*PROMPT, 5, 6, 7]
    await drafter.propose(view(tokens), 3)
    seen = view(tokens[:-2])
    assert (await drafter.propose(seen, 3)).token_ids == await fresh(decoder, seen, 3)
    assert (await drafter.propose(view(tokens), 3)).token_ids == await fresh(
        decoder, view(tokens), 3
    )


async def test_nothing_is_drafted_beyond_what_the_session_may_come_to(drafter) -> None:
    tokens = [*PROMPT, 5]
    assert len(await drafter.propose(view(tokens, max_tokens=6, guess=(1, 2)), 9)) == 3
    ended = view([*tokens, 1, 2, 3], max_tokens=6, guess=(1, 2))
    assert (await drafter.propose(ended, 9)).token_ids == ()
