"""The comparison as a picture: ratios to the baseline with their intervals."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.bench.baselines.records import Record
from outrider.bench.baselines.report import rows, sources
from outrider.errors import ConfigError

__all__ = ["draw"]


def draw(records: Sequence[Record], baseline: str, file: Path) -> None:
    """Bars of all modes, one panel for each file of prompts; the format follows the file's name.

    Raises:
        ConfigError: the baseline was not measured, or matplotlib is not installed.
    """
    try:
        # An extra: those who only measure need none of it.
        backend: Any = importlib.import_module("matplotlib.backends.backend_agg")
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigError(
            "a plot needs matplotlib; add it with pip install 'outrider[bench]'"
        ) from error
    named = sources(records)
    tables = {source: rows(records, source, baseline) for source in named}
    most = max(len(table) for table in tables.values())
    figure = figures.Figure(
        figsize=(5.2 * len(named) + 1.5, 0.34 * most + 1.4), layout="constrained"
    )
    backend.FigureCanvasAgg(figure)
    for axes, (source, table) in zip(
        figure.subplots(1, len(named), squeeze=False)[0], tables.items(), strict=True
    ):
        drawn = [row for row in reversed(table) if row.ratio is not None]
        means = [row.ratio.mean for row in drawn if row.ratio is not None]
        errors = [
            [row.ratio.mean - row.ratio.low for row in drawn if row.ratio is not None],
            [row.ratio.high - row.ratio.mean for row in drawn if row.ratio is not None],
        ]
        colours = ["#d1495b" if row.mode.startswith("Outrider") else "#8d99ae" for row in drawn]
        axes.barh([row.mode for row in drawn], means, xerr=errors, color=colours, capsize=2)
        axes.axvline(1.0, color="#2b2d42", linewidth=0.8)
        axes.set_title(source)
        axes.set_xlabel(f"decode speed, times {baseline}")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)
