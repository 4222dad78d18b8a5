from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from outrider.cli.train_export import export
from outrider.errors import ConfigError, TrainingError
from outrider.models import load_text_assets, read_draft_vocabulary, write_draft_vocabulary
from outrider.text import HFTokenizer
from outrider.train.card import read_record
from outrider.train.initialise import from_layers
from tests.train.toy import VOCAB, write_toy

KEPT = np.asarray([*range(256), VOCAB - 2, VOCAB - 1])


def run(*args: object):
    app = typer.Typer()
    app.command()(export)
    return CliRunner().invoke(app, [str(each) for each in args], catch_exceptions=True)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def trained(tmp_path: Path, toy: Path) -> Path:
    """The folder of a run with one checkpoint."""
    tokenizer = HFTokenizer(load_text_assets(toy).tokenizer_json)
    folder = tmp_path / "run" / "checkpoints" / "step-000012"
    from_layers(toy, [1], tokenizer=tokenizer, target_ids=KEPT).save_pretrained(folder)
    write_draft_vocabulary(folder, KEPT)
    return tmp_path / "run"


def test_export_writes_a_draft_and_tells_its_size_and_how_to_serve_it(
    trained: Path, toy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "draft"
    result = run(
        trained, "--target", toy, "--out", out, "--prompts", tmp_path / "chat.jsonl",
        "--license", "MIT", "--base-model", "org/a", "--base-model", "org/b",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert np.array_equal(read_draft_vocabulary(out), KEPT)
    record = read_record(out)
    assert record is not None
    assert record.prompt_files == ("chat.jsonl",)
    assert (record.licence, record.base_models) == ("MIT", ("org/a", "org/b"))
    size, checked, serve = result.stdout.splitlines()
    weights = (out / "model.safetensors").stat().st_size
    assert f"258 of 265 tokens, {weights / 1e6:.1f} MB in bfloat16, from step-000012" in size
    assert "read by the engine: logits within" in checked
    assert serve.endswith(f"--draft {out}")


def test_an_evaluation_that_is_none_is_told_before_anything_is_written(
    trained: Path, toy: Path, tmp_path: Path
) -> None:
    for text in ("{", "[]", json.dumps({"tau": 3})):
        file = tmp_path / "evaluation.json"
        file.write_text(text)
        result = run(trained, "--target", toy, "--out", tmp_path / "draft", "--evaluation", file)
        assert isinstance(result.exception, ConfigError)
        assert "evaluation" in str(result.exception)
    assert not (tmp_path / "draft").exists()


def test_a_folder_without_a_checkpoint_is_refused(toy: Path, tmp_path: Path) -> None:
    result = run(tmp_path, "--target", toy, "--out", tmp_path / "draft")
    assert isinstance(result.exception, TrainingError)
    assert "holds no checkpoint" in str(result.exception)
