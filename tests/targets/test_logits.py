"""Targets that tell their logits: the rows behind the last tokens, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from outrider.engine import EngineThread
from outrider.errors import ContextLengthExceeded, Overloaded, TargetFailed
from outrider.models import TableModel
from outrider.targets import OpenRequest, Scoring, TableTarget
from outrider.targets.local import LocalTarget
from outrider.types import SamplingParams
from tests.tiny import CONTEXT, VOCAB, next_logits, tiny_decoder, tiny_info, tiny_lane

pytestmark = pytest.mark.anyio

TOKENS = tuple(7 * index % VOCAB for index in range(40))


@pytest.fixture
def target() -> Iterator[LocalTarget]:
    engine = EngineThread(threads=1)
    decoder = tiny_decoder(1)
    yield LocalTarget(tiny_lane(engine, decoder, num_slots=2, step_tokens=16), tiny_info())
    engine.close()


async def test_the_rows_are_those_of_one_pass_from_nothing(target) -> None:
    rows = await target.logits(TOKENS, 3)
    wanted = [next_logits(tiny_decoder(1), list(TOKENS[:length])) for length in (38, 39, 40)]
    assert rows.shape == (3, VOCAB)
    assert rows.dtype == np.float32
    assert np.allclose(rows, np.stack(wanted), atol=1e-4)
    assert (await target.logits(TOKENS[:1], 1)).shape == (1, VOCAB)


async def test_nothing_is_held_or_kept_afterwards(target) -> None:
    await target.logits(TOKENS, 1)
    await target.logits(TOKENS, 40)
    use = target.cache_use()
    assert target.occupancy() == (0, 2)
    assert (use.used_bytes, use.retained_bytes) == (0, 0)


async def test_giving_up_frees_the_slot(target) -> None:
    asking = asyncio.create_task(target.logits(TOKENS, 1))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    assert target.occupancy() == (0, 2)


async def test_there_has_to_be_room(target) -> None:
    for session in ("a", "b"):
        await target.open(OpenRequest(session, 0, (1,), (), SamplingParams(max_tokens=8), 1))
    with pytest.raises(Overloaded):
        await target.logits(TOKENS, 1)
    await target.release("a")
    with pytest.raises(ContextLengthExceeded):
        await target.logits((1,) * (CONTEXT + 1), 1)


async def test_a_failing_pass_is_a_failed_target(target, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(target._lane.decoder, "forward", fail)
    with pytest.raises(TargetFailed, match="the engine failed: broken"):
        await target.logits(TOKENS, 1)
    assert target.occupancy() == (0, 2)


async def test_a_table_tells_its_rows(write_table) -> None:
    model = TableModel.load(write_table(order=2, context_length=8))
    target = TableTarget(model, model_id="t")
    assert isinstance(target, Scoring)
    rows = await target.logits((0, 3, 1), 3)
    wanted = [model.logits((0, 3, 1), length) for length in (1, 2, 3)]
    assert np.array_equal(rows, np.array(wanted, np.float32))
    with pytest.raises(ContextLengthExceeded, match="9 tokens"):
        await target.logits((0,) * 9, 1)
