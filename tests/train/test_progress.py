"""What is written down of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.errors import TrainingError
from outrider.train.progress import Journal


def test_a_run_that_goes_on_writes_later_steps_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run")
    journal.begin(-1)
    for step in (1, 2, 3):
        journal.add({"step": step, "loss": 1.0})
    journal.begin(2)
    journal.add({"step": 3, "loss": 2.0})
    assert [(each["step"], each["loss"]) for each in journal.entries()] == [
        (1, 1.0),
        (2, 1.0),
        (3, 2.0),
    ]


def test_a_line_broken_off_is_dropped(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add({"step": 1})
    with journal.path.open("a") as file:
        file.write('{"step": 2, "lo')
    assert journal.entries() == [{"step": 1}]
    journal.begin(5)
    assert journal.path.read_text() == '{"step": 1}\n'


def test_a_journal_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where a folder belongs")
    with pytest.raises(TrainingError, match=r"cannot write .*metrics\.jsonl"):
        Journal(tmp_path / "run").begin(-1)
