"""The command line in process: what it prints, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider import __version__
from outrider.cli import main
from outrider.config import load_settings

Said = tuple[int, str, str]


@pytest.fixture
def outrider(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable:
    """Runs a command; gives exit code, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["outrider", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def test_version_is_printed(outrider) -> None:
    assert outrider("--version") == (0, f"outrider {__version__}\n", "")


@pytest.mark.parametrize("command", [[], ["run"], ["generate"], ["audit"], ["models"], ["config"]])
def test_help_teaches_every_command(outrider, command) -> None:
    code, out, _ = outrider(*command, "--help")
    assert code == 0
    assert "Usage: outrider" in out


def test_models_are_listed(outrider) -> None:
    code, out, _ = outrider("models", "list")
    assert code == 0
    assert "smollm2-135m-q4_1" in out
    assert "Apache-2.0" in out


def test_an_unknown_model_is_named_with_its_neighbours(outrider, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    code, _, err = outrider("models", "pull", "smollm2-135m")
    assert code == 1
    assert "smollm2-135m'" in err
    assert "smollm2-135m-q4_1" in err
    assert len(err.strip().splitlines()) == 1


def test_the_shown_settings_are_a_file_that_gives_the_same_settings(outrider, tmp_path) -> None:
    code, out, _ = outrider("config", "show")
    assert code == 0
    file = tmp_path / "shown.toml"
    file.write_text(out)
    assert load_settings(file).model_dump() == load_settings().model_dump()
    comments = [line for line in out.splitlines() if line.startswith("# ")]
    values = [line for line in out.splitlines() if " = " in line and not line.startswith("#")]
    assert len(comments) == len(values) > 20


def test_a_bad_setting_is_one_line_and_exit_code_1(outrider, tmp_path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[server]\nport = 99999\n")
    code, out, err = outrider("config", "show", "--config", file)
    assert (code, out) == (1, "")
    assert "server.port is 99999" in err
    assert len(err.strip().splitlines()) == 1


def test_a_misused_option_is_exit_code_2(outrider) -> None:
    code, _, err = outrider("run", "--log-level", "bogus")
    assert code == 2
    assert "bogus" in err
    assert "warning" in err


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "outrider", "config", "show"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["outrider: No space left on device"]


def test_generate_over_a_table_compares_and_says_whether_it_is_exact(outrider, write_table) -> None:
    target, draft = write_table("target", seed=1), write_table("draft", seed=1, scale=1.4)
    code, out, err = outrider(
        *("generate", "0 1 2", "--target", f"table:{target}", "--draft", f"table:{draft}"),
        *("--max-tokens", 30, "--compare", "--controller", "fixed"),
    )
    assert code == 0
    assert len(out.split()) == 30
    assert "outputs: identical" in err
    assert "verified by greedy; exact: identical" in err
    assert "plain" in err


def test_generate_with_a_seed_repeats_itself(outrider, write_table) -> None:
    target = write_table("target", seed=1)
    arguments = ("generate", "0", "--target", f"table:{target}", "--temperature", 1, "--seed", 5)
    assert outrider(*arguments)[1] == outrider(*arguments)[1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--temperature", "-1"], "temperature is -1"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--top-p", "7"], "top_p is 7"),
        (["--draft", "layers:3"], "needs a target that runs in this process"),
        (["--draft", "table:DRAFT"], "is no table of as many"),
        (["--draft", "ngram", "--draft", "ngram"], "two drafters named ngram"),
        (["--max-context", "3"], "this model's context is 3"),
    ],
)
def test_a_bad_request_is_one_line_with_the_value(
    outrider, write_table, arguments, complaint
) -> None:
    target, draft = write_table("target"), write_table("draft", vocab_size=7)
    arguments = [argument.replace("DRAFT", str(draft)) for argument in arguments]
    code, out, err = outrider("generate", "0 1", "--target", f"table:{target}", *arguments)
    assert (code, out) == (1, "")
    assert complaint in " ".join(err.split())
    assert len(err.strip().splitlines()) == 1


def test_the_prompt_may_come_from_standard_input(outrider, write_table, monkeypatch) -> None:
    class Typed:
        @staticmethod
        def read() -> str:
            return "0 1 2"

    monkeypatch.setattr(sys, "stdin", Typed)
    target = write_table("target")
    code, out, _ = outrider("generate", "-", "--target", f"table:{target}", "--max-tokens", 3)
    assert code == 0
    assert len(out.split()) == 3


def test_drafters_of_one_option_may_be_separated_by_commas(outrider, write_table) -> None:
    target, draft = write_table("target"), write_table("draft")
    code, _, err = outrider(
        *("generate", "0", "--target", f"table:{target}", "--max-tokens", 3),
        *("--draft", f"table:{draft},ngram"),
    )
    assert code == 0, err


def test_a_table_with_an_ambiguous_key_is_refused(outrider, tmp_path) -> None:
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"vocab_size": 2, "order": 1, "logits": {"": [0, 0], " 1": [0, 0]}}))
    code, _, err = outrider("generate", "0", "--target", f"table:{file}")
    assert code == 1
    assert "' 1'" in err
