"""The comparison as a picture."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outrider.bench.baselines.plot import draw
from outrider.errors import ConfigError
from tests.bench.baselines.test_report import TWO


def test_a_picture_names_its_modes(tmp_path: Path) -> None:
    file = tmp_path / "p.svg"
    draw(TWO, "plain", file)
    drawn = file.read_text()
    assert "</svg>" in drawn
    assert "<!-- edits -->" in drawn  # matplotlib writes texts as shapes, and says which
    assert "<!-- fast -->" in drawn


def test_without_matplotlib_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ConfigError, match=r"pip install 'outrider\[bench\]'"):
        draw(TWO, "plain", tmp_path / "p.svg")
