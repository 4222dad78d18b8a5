"""A draft model with ids of its own, on the engine, against rows computed from nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from outrider.drafters import SessionView
from outrider.drafters.model import ModelDrafter
from outrider.engine import Decoder, EngineThread, Lane, load_model
from outrider.sampling import History, TokenSampler
from outrider.types import DRAFT_TOTAL, DrafterInfo, SampledDraft, SamplingParams
from outrider.verify import block_law, token_law
from tests.tiny import next_logits
from tests.verify.oracle import EXACT, error_of, sampled

from .vocabularies import tiny_translation, write_model

pytestmark = pytest.mark.anyio

VOCAB = 48
LACKING = (27, 30, 31, 36, 40, 41, 47)
"""Pairs of letters that the draft spells as two."""

TARGET_IDS = [
    -1,
    *np.random.default_rng(2).permutation([i for i in range(VOCAB) if i not in LACKING]).tolist(),
    -1,
]
TRANSLATION = tiny_translation(TARGET_IDS, size=VOCAB)
KNOWN = [i for i in range(VOCAB) if i not in LACKING]
PROMPT = (3, 30, 4, 40, 31, 5)
CONTEXT = 256


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Decoder:
    folder = write_model(tmp_path_factory.mktemp("m") / "target", "{}", vocab_size=VOCAB)
    return load_model(folder, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory) -> Decoder:
    """The target in other ids, without those that are lacking."""
    folder = write_model(
        tmp_path_factory.mktemp("m") / "draft", "{}", vocab_size=VOCAB, rows=TARGET_IDS
    )
    return load_model(folder, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    engine = EngineThread(threads=1)
    yield engine
    engine.close()


def drafter_on(engine: EngineThread, decoder: Decoder, **options: int) -> ModelDrafter:
    options = {"num_slots": 4, "max_length": CONTEXT, "step_tokens": 16} | options
    info = DrafterInfo("other", deterministic=False, declares=True, ahead=True)
    return ModelDrafter(
        Lane(engine, decoder, **options),  # type: ignore[arg-type]
        info,
        vocab_size=VOCAB,
        eos_token_ids=frozenset(),
        translation=TRANSLATION,
    )


@pytest.fixture
def drafter(engine, decoder) -> ModelDrafter:
    return drafter_on(engine, decoder)


def view(
    tokens: Sequence[int],
    session_id: str = "s",
    guess: tuple[int, ...] = (),
    prompt_length: int = len(PROMPT),
    **params: object,
) -> SessionView:
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    return SessionView(
        session_id, tokens, len(tokens), prompt_length, sampling, noise_key=9, guess=guess
    )


def whole_row(decoder: Decoder, tokens: Sequence[int]) -> np.ndarray:
    """The draft's row behind these tokens, over the target's ids."""
    row = next_logits(decoder, TRANSLATION.draft_ids(tokens)).numpy()
    whole = np.full(VOCAB, -np.inf, dtype=np.float32)
    for value, target_id in zip(row, TARGET_IDS, strict=True):
        if target_id >= 0:
            whole[target_id] = value
    return whole


def expected(decoder: Decoder, seen: SessionView, count: int) -> tuple[int, ...]:
    """The draft by its definition."""
    tokens = [*seen.tokens, *seen.guess]
    history = History(tokens[: seen.prompt_length], tokens[seen.prompt_length :])
    sampler = TokenSampler(seen.sampling, 9)
    for _ in range(count):
        history.extend((sampler.sample(whole_row(decoder, history.tokens), history),))
    return tuple(history.tokens[len(tokens) :])


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"frequency_penalty": 2.0}], ids=str)
async def test_a_draft_is_that_of_the_spelled_context(drafter, decoder, params) -> None:
    seen = view([*PROMPT, 47, 5], **params)
    assert (await drafter.propose(seen, 6)).token_ids == expected(decoder, seen, 6)


async def test_drafts_stay_right_whatever_is_accepted_rejected_or_guessed(drafter, decoder) -> None:
    """Rollback cuts anywhere, within what was spelled by several pieces, too."""
    draw = random.Random(1)
    tokens = [*PROMPT, 5]
    for _ in range(25):
        guess = tuple(draw.choices(range(VOCAB), k=draw.randrange(4)))
        seen = view(list(tokens), guess=guess, presence_penalty=0.5)
        draft = (await drafter.propose(seen, 4)).token_ids
        assert draft == expected(decoder, seen, 4)
        came = (*guess, *draft)
        kept = came[: draw.randrange(len(came) + 1)]
        tokens += [*kept, draw.choice([*LACKING, 2, 26])]


async def test_only_what_is_new_is_read(drafter, decoder, monkeypatch) -> None:
    tokens = [*PROMPT, 5]
    await drafter.propose(view(tokens), 1)
    fed: list[int] = []
    forward = decoder.forward

    def counting(chunks, cache):
        fed.extend(len(chunk.token_ids) for chunk in chunks)
        return forward(chunks, cache)

    monkeypatch.setattr(decoder, "forward", counting)
    await drafter.propose(view([*tokens, 30, 2, 40]), 1)
    assert fed == [5]


async def test_a_model_with_the_targets_weights_always_drafts_its_samples(
    drafter, decoder, target
) -> None:
    """So noise goes by the target's ids: the draft's own order is another."""
    draw = random.Random(3)
    agreed = 0
    for index in range(20):
        prompt = draw.choices(KNOWN, k=len(PROMPT))
        seen = view(prompt, str(index))
        (token,) = (await drafter.propose(seen, 1)).token_ids
        await drafter.release(str(index))
        history = History(prompt)
        sample = TokenSampler(seen.sampling, 9).sample(next_logits(target, prompt).numpy(), history)
        assert (token == sample) == (sample in KNOWN)
        agreed += token == sample
    assert 5 < agreed < 20


async def test_getting_ready_reads_all_but_the_last_piece(drafter, decoder) -> None:
    prompt = list(PROMPT) * 10
    seen = view([*prompt, 30], prompt_length=len(prompt))
    await drafter.prepare(seen)
    held = drafter._sessions["s"]
    length = drafter._lane.cache.length(held.slot)
    assert length == len(TRANSLATION.draft_ids(seen.tokens)) - 1
    assert (await drafter.propose(seen, 3)).token_ids == expected(decoder, seen, 3)


async def test_a_new_session_takes_over_what_an_ended_one_read(drafter, decoder) -> None:
    prompt = list(PROMPT) * 5
    seen = view([*prompt, 5], "a", prompt_length=len(prompt))
    await drafter.propose(seen, 2)
    await drafter.release("a")
    again = view([*prompt, 5], "b", prompt_length=len(prompt))
    await drafter.prepare(again)
    slot = drafter._sessions["b"].slot
    assert drafter._lane.cache.length(slot) >= len(TRANSLATION.draft_ids(prompt)) - 1
    assert (await drafter.propose(again, 3)).token_ids == expected(decoder, again, 3)


async def test_what_is_declared_is_the_row_on_the_shared_tokens(drafter, decoder) -> None:
    params = {"temperature": 0.9, "frequency_penalty": 0.7}
    tokens = [*PROMPT, 47]
    sampler = TokenSampler(SamplingParams(**params), 0)  # type: ignore[arg-type]
    for _ in range(3):
        draft = await drafter.draw(view(list(tokens), **params), 4)
        assert isinstance(draft, SampledDraft)
        for index, row in enumerate(draft.rows):
            history = History(PROMPT, [*tokens[len(PROMPT) :], *draft.token_ids[:index]])
            dense = sampler.support(whole_row(decoder, history.tokens), history).dense(VOCAB)
            np.testing.assert_allclose(row.probs(), dense[row.token_ids], atol=2e-5)
            assert set(row.token_ids.tolist()) <= set(KNOWN)
            assert int(row.counts.sum()) == DRAFT_TOTAL
            assert draft.token_ids[index] in row.token_ids
        tokens += [*draft.token_ids[:2], 30]


@pytest.mark.parametrize("law", [token_law, block_law])
def test_rounds_judged_by_ratios_give_the_targets_distribution(law, decoder, target) -> None:
    """Enumerated, on the few tokens that are allowed; the draft lacks one of them."""
    allowed = (2, 27, 44)
    params = SamplingParams(allowed_token_ids=frozenset(allowed))

    def rows_of(row_behind):
        def rows(prefix: tuple[int, ...]) -> np.ndarray:
            history = History(PROMPT, [allowed[index] for index in prefix])
            row = row_behind(history.tokens)
            probs = TokenSampler(params, 0).support(row, history).dense(VOCAB)
            return probs[list(allowed)]

        return rows

    whole = rows_of(lambda tokens: next_logits(target, tokens).numpy())
    shared = rows_of(lambda tokens: whole_row(decoder, tokens))
    assert shared(())[1] == 0 < whole(())[1]
    assert error_of(law, whole, sampled(shared, 3, 2), 3) < EXACT


async def test_constraints_that_the_draft_cannot_meet_end_the_draft(drafter) -> None:
    seen = view([*PROMPT, 5], allowed_token_ids=frozenset({30, 31}))
    assert (await drafter.propose(seen, 4)).token_ids == ()
    assert len(await drafter.draw(seen, 4)) == 0


async def test_a_context_beyond_the_drafts_own_is_not_drafted_for(engine, decoder) -> None:
    drafter = drafter_on(engine, decoder, max_length=20)
    prompt = [30] * 8
    seen = view([*prompt, 30], prompt_length=8, max_tokens=100)  # 18 pieces
    assert len(await drafter.propose(seen, 9)) == 2
    seen = view([*prompt, 30, 30], prompt_length=8, max_tokens=100)
    await drafter.prepare(seen)
    assert (await drafter.propose(seen, 9)).token_ids == ()
    longer = view([30] * 50, "longer", prompt_length=49, max_tokens=100)
    await drafter.prepare(longer)
    assert (await drafter.propose(longer, 9)).token_ids == ()


async def test_what_was_cut_off_for_its_length_is_drafted_for_when_it_fits_again(
    engine, decoder
) -> None:
    drafter = drafter_on(engine, decoder, max_length=20)
    tokens = [30] * 8
    fits = view([*tokens, 5], prompt_length=8, max_tokens=100)
    assert (await drafter.propose(view([*tokens, 30, 30, 30], prompt_length=8), 2)).token_ids == ()
    assert (await drafter.propose(fits, 2)).token_ids == expected(decoder, fits, 2)


async def test_nothing_is_drafted_beyond_what_the_session_may_come_to(drafter) -> None:
    seen = view([*PROMPT, 5], max_tokens=4, guess=(1,))
    assert len(await drafter.propose(seen, 9)) == 2


async def test_a_context_that_says_nothing_is_not_drafted_behind(engine, decoder) -> None:
    drafter = drafter_on(engine, decoder)
    seen = view([60, 61], prompt_length=1)  # ids without a token
    assert (await drafter.propose(seen, 3)).token_ids == ()
    seen = view([60, 61, 5], prompt_length=1)
    assert (await drafter.propose(seen, 3)).token_ids == expected(decoder, seen, 3)
    seen = view([60, 61, 5, 60], prompt_length=1)
    assert (await drafter.propose(seen, 3)).token_ids == expected(decoder, seen, 3)
