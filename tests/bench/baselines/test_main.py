"""The comparison's command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.bench.baselines import Records, __main__, engine, modes
from outrider.bench.baselines.modes import DEFAULT_MODES, load_modes
from outrider.bench.baselines.records import AnswerRecord, SettingRecord, read_records
from outrider.errors import ConfigError, FetchFailed
from outrider.models import ModelFolder
from tests.bench.baselines.fakes import FAKE_PEERS
from tests.bench.baselines.making import SETTING, answered


def call(*arguments: str) -> str:
    done = CliRunner().invoke(__main__.app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_list_holds_every_mode_below_its_peer() -> None:
    listed = call("list")
    for name in load_modes(DEFAULT_MODES).modes:
        assert f"  {name}\n" in listed
    assert "llama.cpp: llama-cpp-python==" in listed


def test_a_report_is_written_and_shown(tmp_path: Path) -> None:
    records = Records(tmp_path / "r.jsonl", SETTING)
    records.add(answered("plain"))
    page = tmp_path / "page.md"
    shown = call("report", str(tmp_path / "r.jsonl"), "--output", str(page), "--baseline", "plain")
    assert "| plain | 1 | 10.0 | 1 |" in page.read_text()
    assert page.read_text() in shown


def test_one_peer_that_cannot_be_built_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def build(name: str, _: Path) -> None:
        tried.append(name)
        if name == "vllm":
            raise FetchFailed("no room")

    monkeypatch.setattr(__main__, "build", build)
    with pytest.raises(ConfigError, match="not built: vllm; the comparison will say so too"):
        call("build", "vllm", "openvino", "--peers", str(tmp_path))
    assert tried == ["vllm", "openvino"]


def test_an_error_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--target", "no.gguf", "--draft", "no.gguf", "--results", "r.jsonl"]
    monkeypatch.setattr(sys, "argv", ["baselines", "run", "prompts.jsonl", *files])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: there is no file no.gguf; name a GGUF file\n"


@pytest.mark.parametrize("text", ["name", "=value", "na me=value"])
def test_a_setting_without_name_and_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write NAME=VALUE"):
        __main__._assignment(text)


MODES = """
[processes.one]
peer = "llama"
memory_gb = 1
arguments = ["$way"]
[modes.A]
process = "one"
"""


def test_a_run_asks_what_the_files_say_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smollm2: ModelFolder
) -> None:
    for module in (modes, engine):
        monkeypatch.setattr(module, "PEERS", FAKE_PEERS)
    monkeypatch.setattr(__main__, "resolve", lambda *_, **__: smollm2)
    for name, text in (("m.toml", MODES), ("m.gguf", ""), ("p.jsonl", '{"turns": ["Hi!"]}\n' * 2)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    command = ["run", "p.jsonl", "--target", "m.gguf", "--draft", "m.gguf", "--results", "r.jsonl"]
    command += ["--modes", "m.toml", "--max-tokens", "4", "--set", "way=none"]
    assert "p 1: A:" in call(*command)
    assert call(*command) == ""
    found = read_records(tmp_path / "r.jsonl")
    assert [type(record) for record in found] == [SettingRecord, AnswerRecord, AnswerRecord]
    assert (tmp_path / ".peers" / "logs" / "one.log").exists()
