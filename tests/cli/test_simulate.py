from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from outrider.cli.simulate import simulate
from outrider.errors import ConfigError


def run(*args: object):
    app = typer.Typer()
    app.command()(simulate)
    return CliRunner().invoke(app, [str(each) for each in args], catch_exceptions=True)


@pytest.fixture
def traces(tmp_path):
    file = tmp_path / "traces.jsonl"
    lines = [{"id": str(index), "acc_eagle": [3, 2, 1, 1, 4] * 8} for index in range(4)]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def test_simulate_prints_a_table_and_writes_its_files(traces, tmp_path) -> None:
    report, plot = tmp_path / "report.json", tmp_path / "plot.svg"
    result = run(
        traces, "--field", "acc_eagle", "--rtt", "0.3", "--batch", "1,64", "--limit", 3,
        "--tokens", 30, "--join", 2, "--ahead", 1, "--json", report, "--plot", plot,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "2 sessions, 90 tokens" in result.output
    assert result.output.count("RTT 0.3 ms") == 2
    assert len(json.loads(report.read_text())["comparisons"]) == 2
    assert plot.exists()


def test_simulate_says_what_it_cannot_read(traces) -> None:
    for arguments, words in (
        ([], "name the list to take with --field"),
        (["--rtt", "near"], "--rtt is 'near'"),
    ):
        error = run(traces, *arguments).exception
        assert isinstance(error, ConfigError)
        assert words in str(error)
