"""What a comparison leaves, and how it is gone on with."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from outrider.bench.baselines.records import FailureRecord, Records, read_records
from outrider.errors import ConfigError
from tests.bench.baselines.making import SETTING, answered


def test_all_that_was_added_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "results" / "r.jsonl"
    records = Records(file, SETTING)
    added = [answered("plain"), FailureRecord("g", "fast", "no such flag"), answered("x", 3)]
    for record in added:
        records.add(record)
    assert read_records(file) == [SETTING, *added]


def test_a_comparison_goes_on_behind_a_line_that_was_broken_off(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    Records(file, SETTING).add(answered("plain"))
    with file.open("a") as open_file:
        open_file.write('{"kind": "answer", "mo')
    records = Records(file, SETTING)
    assert records.done == {("g", "edits", 0, "plain")}
    records.add(answered("plain", 1))
    assert read_records(file) == [SETTING, answered("plain"), answered("plain", 1)]


def test_a_failure_does_not_count_as_done(tmp_path: Path) -> None:
    records = Records(tmp_path / "r.jsonl", SETTING)
    records.add(FailureRecord("g", "plain", "busy", "edits", 0))
    assert not records.done


def test_results_of_another_setting_are_not_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    Records(file, SETTING)
    other = msgspec.structs.replace(SETTING, threads=4)
    with pytest.raises(ConfigError, match=r"begun with threads 2 \(not 4\); name another file"):
        Records(file, other)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text('{"turns": ["hello"]}\n')
    with pytest.raises(ConfigError, match=r"line 1 of .* is no record of a comparison"):
        read_records(file)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_records(tmp_path / "r.jsonl")


def test_an_answer_that_came_all_at_once_has_no_speed() -> None:
    assert answered("x", decoded=0).speed is None
    assert answered("x", decode_s=0.0).speed is None
    assert answered("x", decoded=10, decode_s=4.0).speed == 2.5
