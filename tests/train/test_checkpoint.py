"""Checkpoints are there whole, or not at all."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from outrider.errors import CorruptData, TrainingError
from outrider.train.checkpoint import Best, Checkpoints

BEGUN = {"epochs": 3.0, "data": "abc"}


def write(checkpoints: Checkpoints, step: int, best: Best | None = None) -> None:
    with checkpoints.writing() as folder:
        made = folder / "anything"
        made.mkdir()
        (made / "model.safetensors").write_text(f"weights of {step}")
        checkpoints.finish(made, step, BEGUN, best)


def weights(out: Path, step: int) -> str:
    return (out / "checkpoints" / f"step-{step:06d}" / "model.safetensors").read_text()


def test_a_run_that_has_not_begun_has_no_checkpoint(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).last() is None


def test_the_last_checkpoint_is_the_one_of_the_highest_step(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (90, 1_000_000, 999_999):
        write(checkpoints, step, Best(90, 0.5))
    last = checkpoints.last()
    assert last is not None
    assert (last.step, last.begun, last.best) == (1_000_000, BEGUN, Best(90, 0.5))
    assert last.path.name == "step-1000000"


def test_the_latest_and_the_best_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (10, 20, 30, 40, 50):
        write(checkpoints, step, Best(20, 0.5) if step >= 20 else Best(10, 0.1))
    assert list(checkpoints.steps()) == [20, 40, 50]
    assert (tmp_path / "best").resolve() == checkpoints.steps()[20].resolve()


def test_what_breaks_off_while_writing_leaves_the_last_one_as_it_was(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 10)

    def fill_disk() -> None:
        with checkpoints.writing() as folder:
            (folder / "model.safetensors").write_text("half of it")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(TrainingError, match=r"No space left on device; the last one, step-000010"):
        fill_disk()
    assert weights(tmp_path, 10) == "weights of 10"
    assert list((tmp_path / "checkpoints").iterdir()) == [tmp_path / "checkpoints" / "step-000010"]


def test_what_a_killed_run_left_is_no_checkpoint_and_is_cleared_away(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.unfinished.mkdir(parents=True)
    (checkpoints.unfinished / "half").write_text("of it")
    assert checkpoints.last() is None
    write(checkpoints, 10)
    assert not checkpoints.unfinished.exists()
    assert list(checkpoints.steps()) == [10]


@pytest.mark.parametrize(
    "record", ["{", "[]", json.dumps({"version": 9}), json.dumps({"version": 1, "step": 10})]
)
def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path: Path, record: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 10)
    (tmp_path / "checkpoints" / "step-000010" / "run.json").write_text(record)
    with pytest.raises(CorruptData, match="step-000010 cannot be read"):
        checkpoints.last()
