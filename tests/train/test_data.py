"""Whole runs: resumed, refused, reported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.errors import CorruptData, TrainingError
from outrider.train import data
from outrider.train.answering import Answerer, Skipped
from outrider.train.data import Tally, make_data, source_of
from outrider.train.prompts import Prompt
from outrider.train.records import Sampling, Source
from outrider.train.store import read_examples, shards
from tests.train.toy import CONTEXT, toy_target, write_toy

pytestmark = pytest.mark.anyio

SAMPLING = Sampling(temperatures=(0.0, 1.0), max_tokens=12)
PROMPTS = [Prompt("chat", turns=(f"Question {n}",)) for n in range(7)]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory):
    with toy_target(write_toy(tmp_path_factory.mktemp("toy"))) as made:
        yield made


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_SHARD_SIZE", 4)


async def make(
    folder: Path,
    toy: Any,
    prompts: Sequence[Prompt] = PROMPTS,
    *,
    change: dict[str, Any] | None = None,
    sampling: Sampling = SAMPLING,
    **extra: Any,
) -> Tally:
    target, lane = toy
    info = await target.describe()
    source: Source = source_of(info, prompts, sampling, k=8, holdout=0.5)
    source = replace(source, **change or {})
    return await make_data(folder, lane, info, source, prompts, streams=3, **extra)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


async def test_every_prompt_is_answered_once_at_each_temperature_in_order(toy, tmp_path) -> None:
    tally = await make(tmp_path, toy)
    examples = read_examples(tmp_path)
    wanted = [f"{prompt.id}-{t}" for prompt in PROMPTS for t in ("0", "1")]
    assert [each.id for each in examples] == wanted
    assert list(shards(tmp_path)) == [0, 1, 2, 3]
    assert (tally.total, tally.done, tally.kept) == (14, 14, 0)
    assert tally.tokens == tally.stored_tokens == examples.num_generated.sum()
    assert tally.stored_bytes == examples.nbytes
    held_out = {each.id.split("-")[0]: each.held_out for each in examples}
    assert held_out == {prompt.id: prompt.held_out(0.5) for prompt in PROMPTS}
    assert len(set(held_out.values())) == 2


class _Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("stop_after", [1, 4, 6, 13])
async def test_a_run_that_was_broken_off_ends_as_one_that_was_not(
    toy, tmp_path, monkeypatch, stop_after: int
) -> None:
    await make(tmp_path / "whole", toy)

    def kill(tally: Tally) -> None:
        if tally.done >= stop_after:
            raise _Killed

    broken = tmp_path / "broken"
    with pytest.raises(_Killed):
        await make(broken, toy, on_answer=kill)
    before = contents(broken)
    assert len(before) < 4
    tally = await make(broken, toy)
    assert tally.kept == 4 * len(before) - (2 if "part-00003.parquet" in before else 0)
    assert tally.kept + tally.done == tally.total
    after = contents(broken)
    assert {name: after[name] for name in before} == before
    for ours, theirs in zip(read_examples(broken), read_examples(tmp_path / "whole"), strict=True):
        assert ours.id == theirs.id
        for name in ("token_ids", "generated", "support_ids", "support_logits", "logsumexps"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert after == contents(tmp_path / "whole")


async def test_a_run_that_is_cancelled_keeps_whole_shards_and_leaves_the_engine_free(
    toy, tmp_path
) -> None:
    begun = asyncio.Event()
    task = asyncio.create_task(make(tmp_path, toy, on_shard=lambda _: begun.set()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    _, lane = toy
    assert lane.cache.num_free == lane.num_slots
    assert len(read_examples(tmp_path)) >= 4


async def test_a_finished_run_does_nothing_a_second_time(toy, tmp_path) -> None:
    await make(tmp_path, toy)
    before = contents(tmp_path)
    tally = await make(tmp_path, toy)
    assert (tally.kept, tally.done, tally.tokens) == (14, 0, 0)
    assert contents(tmp_path) == before


async def test_a_shard_that_was_lost_is_made_anew(toy, tmp_path) -> None:
    await make(tmp_path, toy)
    before = contents(tmp_path)
    (tmp_path / "part-00001.parquet").unlink()
    await make(tmp_path, toy)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"model_hash": "another"}, "model_hash"),
        ({"k": 4}, "k"),
        ({"temperatures": (1.0, 2.0)}, "temperatures"),
        ({"sampling": replace(SAMPLING, seed=9)}, "sampling"),
        ({"holdout": 0.1}, "holdout"),
        ({"dtype": "float32"}, "dtype"),
    ],
)
async def test_other_settings_do_not_go_into_the_same_folder(
    toy, tmp_path, change: dict[str, Any], name: str
) -> None:
    await make(tmp_path, toy, PROMPTS[:2])
    before = contents(tmp_path)
    with pytest.raises(TrainingError, match=rf"with {name} .*another --out"):
        await make(tmp_path, toy, PROMPTS[:2], change=change)
    assert contents(tmp_path) == before


async def test_other_prompts_do_not_go_into_the_same_folder(toy, tmp_path) -> None:
    await make(tmp_path, toy, PROMPTS[:2])
    with pytest.raises(TrainingError, match="with prompts "):
        await make(tmp_path, toy, PROMPTS[:3])


async def test_a_truncated_shard_is_named_before_anything_is_asked(
    toy, tmp_path, monkeypatch
) -> None:
    await make(tmp_path, toy)
    path = tmp_path / "part-00002.parquet"
    path.write_bytes(path.read_bytes()[:50])

    async def asked(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Answerer, "answer", asked)
    with pytest.raises(CorruptData, match=r"part-00002\.parquet.*remove the file"):
        await make(tmp_path, toy)


async def test_prompts_without_an_answer_are_counted_with_the_reason(toy, tmp_path) -> None:
    prompts = [PROMPTS[0], Prompt("long", text="x " * CONTEXT)]
    tally = await make(tmp_path, toy, prompts)
    assert tally.skipped == {Skipped.TOO_LONG: 2}
    assert len(read_examples(tmp_path)) == 2


async def test_a_run_without_any_answer_fails_and_says_why(toy, tmp_path) -> None:
    prompts = [Prompt("long", text="x " * CONTEXT)]
    with pytest.raises(TrainingError, match="longer than the context"):
        await make(tmp_path, toy, prompts)
    with pytest.raises(TrainingError, match="skipped before"):
        await make(tmp_path, toy, prompts)


async def test_a_full_disk_ends_the_run_at_once(toy, tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TrainingError, match=r"cannot write .*same command"):
        await make(tmp_path / "file" / "folder", toy)
