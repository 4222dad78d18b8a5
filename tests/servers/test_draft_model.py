"""A draft server with a model on the engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from outrider.config import Settings
from outrider.drafters.model import ModelDrafter
from outrider.drafters.wire import Description
from outrider.engine import Decoder, EngineThread, Lane
from outrider.models import write_draft_vocabulary
from outrider.servers.create import create_served_drafter
from outrider.text import HFTokenizer, fingerprint
from outrider.types import DrafterInfo
from tests.drafters.vocabularies import byte_level_json, write_model
from tests.tiny import CONTEXT, VOCAB, next_logits, tiny_decoder

from .drafting import serving, until

pytestmark = pytest.mark.anyio

PROMPT = list(range(20))

DESCRIPTION = Description(
    name="tiny",
    model_hash="tiny",
    vocab_size=VOCAB,
    vocab_fingerprint="tiny",
    context_length=CONTEXT,
)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder(3, sharpness=2.0)


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    engine = EngineThread(threads=1)
    yield engine
    engine.close()


def drafter(engine: EngineThread, decoder: Decoder, *, kv_tokens: int | None = None):
    lane = Lane(
        engine, decoder, num_slots=8, max_length=CONTEXT, step_tokens=64, kv_tokens=kv_tokens
    )
    info = DrafterInfo("tiny", deterministic=False, declares=True, ahead=True)
    return ModelDrafter(lane, info, vocab_size=VOCAB, eos_token_ids=frozenset())


async def test_concurrent_drafts_share_their_passes(engine, decoder, monkeypatch) -> None:
    passes: list[int] = []
    forward = decoder.forward

    def counting(chunks, cache):
        passes.append(len(chunks))
        return forward(chunks, cache)

    asks = [
        {"session_id": str(index), "tokens": [*PROMPT, index], "noise_key": 1} for index in range(4)
    ]
    async with serving(drafter(engine, decoder), DESCRIPTION) as server:
        for ask in asks:
            await server.propose(num_tokens=1, **ask)
        monkeypatch.setattr(decoder, "forward", counting)
        hold = threading.Event()
        engine.post(hold.wait)  # all are asked before the first pass
        asked = [asyncio.create_task(server.propose(num_tokens=5, **ask)) for ask in asks]
        await until(lambda: server.service._running == 4)
        await asyncio.sleep(0.02)
        hold.set()
        answers = await asyncio.gather(*asked)
        assert passes == [4] * 5
        assert all(len(answer["tokens"]) == 5 for answer in answers)


async def test_a_rollback_drafts_as_if_nothing_else_had_been_sent(engine, decoder) -> None:
    async with serving(drafter(engine, decoder), DESCRIPTION) as server:
        ask = {"session_id": "s", "num_tokens": 4}
        await server.propose(tokens=[*PROMPT, 1, 2, 3], prompt_length=20, **ask)
        answer = await server.propose(base=21, tokens=[7, 8], **ask)
        known = [*PROMPT, 1, 7, 8]
        for _ in range(4):
            known.append(int(next_logits(decoder, known).argmax()))
        assert answer["tokens"] == known[23:]


async def test_a_session_without_memory_for_it_takes_that_of_idle_ones(engine, decoder) -> None:
    room = drafter(engine, decoder, kv_tokens=CONTEXT)
    sampling = {"temperature": 0.0, "max_tokens": 150}
    async with serving(room, DESCRIPTION) as server:
        for name in ("a", "b"):
            await server.propose(
                session_id=name, tokens=PROMPT, num_tokens=2, noise_key=1, sampling=sampling
            )
        assert len(server.service.sessions) == 1
        lost = await server.propose(409, session_id="a", base=20, tokens=[1], num_tokens=2)
        assert lost["held"] == 0


async def test_a_session_that_ends_gives_its_memory_back(engine, decoder) -> None:
    model = drafter(engine, decoder)
    async with serving(model, DESCRIPTION) as server:
        await server.propose(tokens=PROMPT, num_tokens=2)
        await server.propose(session_id="s", tokens=PROMPT, num_tokens=2)
        assert model._lane.cache.num_free == 7
        await server.service.release(["s"])
        assert model._lane.cache.num_free == 8


async def test_a_trimmed_draft_is_served_in_its_targets_ids(tmp_path: Path) -> None:
    tokenizer_json = byte_level_json((" the", "ing"))
    tokenizer = HFTokenizer(tokenizer_json)
    size = tokenizer.vocab_size
    kept = [*range(100, size)]
    folder = write_model(
        tmp_path / "trimmed",
        tokenizer_json,
        vocab_size=size,
        rows=kept,
        eos=size - 1,
        config_eos=kept.index(size - 1),
    )
    write_draft_vocabulary(folder, np.array(kept))
    settings = Settings(engine={"target": str(folder), "threads": 1, "dtype": "float32"})
    served = create_served_drafter(settings)
    try:
        said = served.description
        assert said.vocab_fingerprint == fingerprint(tokenizer.token_strings)
        assert said.vocab_size == size
        async with serving(served.drafter, said, engine={"max_sessions": 4}) as server:
            ask = {"tokens": [200, 256, 150, 257], "num_tokens": 8}
            answer = await server.propose(**ask)
            assert len(answer["tokens"]) == 8
            assert set(answer["tokens"]) <= set(kept)
            drawn = await server.propose(temperature=1.0, return_distribution=True, **ask)
            for token_id, support in zip(drawn["tokens"], drawn["support"], strict=True):
                assert token_id in support
                assert set(support) <= set(kept)
            await server.propose(400, tokens=[size], num_tokens=1)
    finally:
        await served.close()


@pytest.mark.integration
async def test_a_real_model_is_served_with_its_own_vocabulary(smollm2) -> None:
    settings = Settings(engine={"target": "smollm2-135m-q4_1", "threads": 1, "max_context": 256})
    served = create_served_drafter(settings)
    try:
        said = served.description
        strings = HFTokenizer((smollm2.path / "tokenizer.json").read_text()).token_strings
        assert said.vocab_fingerprint == fingerprint(strings)
        assert (said.vocab_size, said.context_length) == (49152, 256)
        async with serving(served.drafter, said, engine={"max_sessions": 4}) as server:
            answer = await server.propose(tokens=[1, 2, 3], num_tokens=3)
            assert len(answer["tokens"]) == 3
    finally:
        await served.close()
