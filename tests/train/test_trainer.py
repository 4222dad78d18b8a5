"""Runs: broken off and gone on with, gone wrong, and refused."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from outrider.errors import CorruptData, TrainingError
from outrider.models import read_draft_vocabulary
from outrider.train.distil import distil
from outrider.train.objective import LossSettings
from outrider.train.order import epoch_parts
from outrider.train.plan import DraftModel, Outcome, Plan, Rhythm
from outrider.train.settings import DistilSettings
from outrider.train.store import Part, read_examples
from tests.train.toy import VOCAB
from tests.train.toy_answers import toy_draft, toy_start, toy_target, write_answers

SETTINGS = DistilSettings(
    epochs=3, batch_tokens=512, part_tokens=256, learning_rate=3e-3, precision="float32"
)
RHYTHM = Rhythm(report=2, evaluate=4, save=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_answers(tmp_path_factory.mktemp("data") / "answers", 60)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(
    out: Path, data: Path, settings: DistilSettings = SETTINGS, *, ends_after: int = 0, **said: Any
) -> Outcome:
    """One run; asked to end after so many steps."""
    steps = iter(range(1, 1_000_000))
    return distil(
        Plan(out, (data,), origin="toy"),
        said.pop("target", toy_target(data)),
        settings,
        said.pop("start", toy_start),
        rhythm=said.pop("rhythm", RHYTHM),
        asked_to_end=lambda: next(steps) == ends_after,
    )


def checkpoint(out: Path, step: int) -> dict[str, bytes]:
    folder = out / "checkpoints" / f"step-{step:06d}"
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def journal(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def timeless(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in each.items() if k != "tokens_per_s"} for each in entries]


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    torch.set_num_threads(1)
    return out, run(out, data)


def test_a_draft_learns(whole: tuple[Path, Outcome]) -> None:
    out, outcome = whole
    judged = [each["held_out"] for each in journal(out) if "held_out" in each]
    assert judged[-1]["acceptance"] > 1.2 * judged[0]["acceptance"]
    losses = [each["loss"] for each in journal(out) if "loss" in each]
    assert losses[-1] < losses[0]
    assert (out / "loss.svg").stat().st_size > 1000
    assert outcome.best is not None
    assert outcome.checkpoint.name == f"step-{outcome.best.step:06d}"
    assert not outcome.interrupted


def test_a_run_broken_off_goes_on_to_the_same_bits(
    data: Path, whole: tuple[Path, Outcome], tmp_path: Path
) -> None:
    undisturbed, ended = whole
    assert ended.steps > 8
    # In the middle of an epoch, just after a checkpoint of the rhythm, and once more.
    for ends_after, step in ((3, 3), (2, 5)):
        outcome = run(tmp_path, data, ends_after=ends_after)
        assert (outcome.interrupted, outcome.step) == (True, step)
    outcome = run(tmp_path, data)
    assert not outcome.interrupted
    assert checkpoint(tmp_path, outcome.steps) == checkpoint(undisturbed, ended.steps)


def test_a_run_that_is_done_is_not_trained_further(data: Path, whole: tuple[Path, Outcome]) -> None:
    out, outcome = whole
    before = checkpoint(out, outcome.step)
    assert run(out, data) == outcome
    assert checkpoint(out, outcome.step) == before


def test_steps_that_are_done_again_are_written_down_once(data: Path, tmp_path: Path) -> None:
    def fail(_: object) -> DraftModel:
        raise AssertionError("a run that goes on needs no first draft")

    rhythm = Rhythm(report=1, evaluate=100, save=2)
    run(tmp_path, data, ends_after=4, rhythm=rhythm)
    # As if it had been killed after step 6, with the last checkpoint at step 4.
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 5}) + "\n" + json.dumps({"step": 6}) + '\n{"st')
    run(tmp_path, data, ends_after=2, rhythm=rhythm, start=fail)
    steps = [each["step"] for each in journal(tmp_path) if "loss" in each]
    assert steps == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"learning_rate": 1e-4}, "learning_rate 0.003, and this run has 0.0001"),
        ({"epochs": 4}, "epochs 3, and this run has 4"),
        ({"loss": LossSettings("kl")}, "loss.kind lk, and this run has kl"),
        ({"seed": 1}, "seed 0, and this run has 1"),
    ],
)
def test_other_settings_do_not_go_on(
    data: Path, whole: tuple[Path, Outcome], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(TrainingError, match=said):
        run(whole[0], data, replace(SETTINGS, **changes))


def test_other_data_does_not_go_on(whole: tuple[Path, Outcome], tmp_path: Path) -> None:
    other = write_answers(tmp_path / "other", 60, seed=1)
    with pytest.raises(TrainingError, match="was begun with data"):
        run(whole[0], other)


def test_data_of_another_target_is_refused(data: Path, tmp_path: Path) -> None:
    other = toy_target(data, model_hash="of another", dtype="int4")
    with pytest.raises(
        TrainingError, match=r"hash of the toy\), not of toy \(int4, hash of another"
    ):
        run(tmp_path, data, target=other)


def test_data_of_another_tokenizer_is_refused(data: Path, tmp_path: Path) -> None:
    other = toy_target(data, model_id="other", vocab_fingerprint="another")
    with pytest.raises(TrainingError, match="another tokenizer than other"):
        run(tmp_path, data, target=other)


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="holds no training data"):
        run(tmp_path / "out", tmp_path)


def test_data_that_is_all_held_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no token that the target made"):
        run(tmp_path / "out", write_answers(tmp_path / "data", 1))


def test_a_loss_that_is_not_finite_ends_the_run_and_spoils_nothing(
    data: Path, tmp_path: Path
) -> None:
    run(tmp_path, data, ends_after=2)
    before = checkpoint(tmp_path, 2)
    poisoned = tmp_path / "checkpoints" / "step-000002" / "model.safetensors"
    whole = poisoned.read_bytes()
    poisoned.write_bytes(whole[:-4] + np.float32("nan").tobytes())
    with pytest.raises(
        TrainingError, match=r"of step 3 is not finite \(nan\); the checkpoint of step 2 is as it"
    ):
        run(tmp_path, data)
    poisoned.write_bytes(whole)
    assert checkpoint(tmp_path, 2) == before
    assert list((tmp_path / "checkpoints").glob("step-*")) == [poisoned.parent]


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """What a full disk does: writing fails in the middle of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [10_000, 60_000])
def test_a_full_disk_leaves_the_last_checkpoint_and_says_so(
    data: Path, tmp_path: Path, size: int
) -> None:
    run(tmp_path, data, ends_after=2)
    before = checkpoint(tmp_path, 2)
    assert len(before["model.safetensors"]) > 10_000
    assert len(before["optimizer.pt"]) > 60_000
    with (
        no_file_above(size),
        pytest.raises(TrainingError, match=r"cannot write a checkpoint .*step-000002, is whole"),
    ):
        run(tmp_path, data)
    assert checkpoint(tmp_path, 2) == before
    assert run(tmp_path, data).step > 2


def test_a_checkpoint_with_broken_weights_is_named(data: Path, tmp_path: Path) -> None:
    run(tmp_path, data, ends_after=1)
    weights = tmp_path / "checkpoints" / "step-000001" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(CorruptData, match=r"step-000001.* remove it"):
        run(tmp_path, data)


def test_how_a_step_is_cut_into_parts_does_not_change_it(data: Path, tmp_path: Path) -> None:
    examples = read_examples(data, Part.TRAIN)
    everything = np.arange(len(examples))
    made = []
    for part_tokens in (10_000, 150):
        parts = list(epoch_parts(examples.num_tokens, everything, part_tokens, 0, 0))
        settings = replace(
            SETTINGS, epochs=1, part_tokens=part_tokens, batch_tokens=part_tokens * len(parts)
        )
        out = tmp_path / str(len(parts))
        assert run(out, data, settings).steps == 1  # all conversations, once
        (entry,) = (each for each in journal(out) if "loss" in each)
        weights = load_file(out / "best" / "model.safetensors")["model.norm.weight"]
        made.append((entry["tokens"], entry["loss"], entry["grad_norm"], weights))
    (tokens, loss, norm, weights), (many_tokens, many_loss, many_norm, many_weights) = made
    assert len(list(tmp_path.iterdir())) == 2
    assert tokens == many_tokens == int(examples.num_generated.sum())
    assert many_loss == pytest.approx(loss, rel=1e-5)
    assert many_norm == pytest.approx(norm, rel=1e-4)
    torch.testing.assert_close(many_weights, weights, rtol=1e-4, atol=1e-5)


def test_a_trimmed_draft_s_checkpoints_say_which_tokens_it_has(data: Path, tmp_path: Path) -> None:
    kept = np.array([i for i in range(VOCAB) if i not in (257, 260)], dtype=np.int64)
    start = DraftModel(toy_draft(vocab_size=kept.size), kept)
    outcome = run(tmp_path, data, ends_after=3, start=lambda _: start)
    found = read_draft_vocabulary(outcome.checkpoint)
    assert found is not None
    assert found.tolist() == kept.tolist()
    assert load_file(outcome.checkpoint / "model.safetensors")[
        "model.embed_tokens.weight"
    ].shape == (kept.size, 32)
    assert run(tmp_path, data).step > 3
