from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from outrider.cli.train_data import data
from outrider.errors import ConfigError, TrainingError
from outrider.train import data as making
from outrider.train.store import read_examples
from tests.train.toy import CONTEXT, write_toy


def run(*args: object):
    app = typer.Typer()
    app.command()(data)
    return CliRunner().invoke(app, [str(each) for each in args], catch_exceptions=True)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    lines = [{"turns": [f"Question {n}"], "category": "ab"[n % 2]} for n in range(5)]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def test_data_writes_shards_and_tells_what_is_in_them(
    toy: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "_SHARD_SIZE", 4)
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"text": "x " * CONTEXT}))
    out = tmp_path / "out"
    arguments = (
        prompts, long, "--target", toy, "--out", out, "--temperature", "0,1", "--max-tokens", 6,
        "--threads", 1, "--concurrency", 3, "--logits", 8, "--temperatures", "0.7",
    )  # fmt: skip
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    examples = read_examples(out)
    assert len(examples) == 10
    assert examples.source.temperatures == (0.7, 1.0)
    assert examples.source.k == 8
    assert "12 of 12 answers" in result.stderr
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["a", "6"] in [row[:2] for row in rows]
    assert ["all", "10"] in [row[:2] for row in rows]
    assert "bytes per token" in result.stdout
    assert "2 prompts have no answer: 2 longer than the context" in result.stdout
    again = run(*arguments)
    assert again.exit_code == 0, again.output
    assert "2 prompts have no answer" in again.stdout
    other = run(*arguments, "--seed", 1)
    assert isinstance(other.exception, TrainingError)
    assert "sampling" in str(other.exception)


@pytest.mark.parametrize("given", ["warm", "0,-1", "nan"])
def test_temperatures_that_mean_nothing_are_refused(prompts: Path, tmp_path: Path, given) -> None:
    result = run(prompts, "--out", tmp_path / "out", "--temperature", given)
    assert isinstance(result.exception, ConfigError)
    assert "--temperature" in str(result.exception)


def test_a_target_elsewhere_is_refused(prompts: Path, tmp_path: Path) -> None:
    result = run(prompts, "--out", tmp_path / "out", "--target", "grpc://127.0.0.1:1")
    assert isinstance(result.exception, ConfigError)
    assert "does not run on this process's engine" in str(result.exception)
