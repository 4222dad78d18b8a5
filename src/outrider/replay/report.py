"""A comparison as text, as values and as a picture."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.replay.compare import Comparison

__all__ = ["as_json", "as_markdown", "draw"]


def as_markdown(comparisons: Sequence[Comparison]) -> str:
    """A table, a world a line; speeds are in times plain decoding."""
    lines = [
        "| world | plain, tokens/s | best fixed | window | goodput | clairvoyant "
        "| goodput of best fixed | of window | of clairvoyant |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in comparisons:
        clairvoyant = "" if each.clairvoyant is None else f"{each.clairvoyant / each.plain:.2f}"
        share = "" if each.of_clairvoyant is None else f"{each.of_clairvoyant:.1%}"
        lines.append(
            f"| {each.world.name} | {each.plain:.1f} "
            f"| {each.fixed[each.best] / each.plain:.2f} (k = {each.best}) "
            f"| {each.window / each.plain:.2f} | {each.goodput / each.plain:.2f} | {clairvoyant} "
            f"| {each.of_best:.1%} | {each.of_window:.1%} | {share} |"
        )
    return "\n".join(lines)


def as_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Everything that was found; speeds are in tokens per second."""
    return {
        "comparisons": [
            asdict(each)
            | {
                "best": each.best,
                "of_best": each.of_best,
                "of_window": each.of_window,
                "of_clairvoyant": each.of_clairvoyant,
            }
            for each in comparisons
        ]
    }


def draw(comparisons: Sequence[Comparison], file: Path) -> None:
    """Bars per world, in times plain decoding; the format follows the file's name.

    Raises:
        ConfigError: matplotlib is not installed, or knows no such format.
    """
    try:
        # An extra: those who only read the table need none of it.
        backend: Any = importlib.import_module("matplotlib.backends.backend_agg")
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigError(
            "a plot needs matplotlib; add it with pip install 'outrider[bench]'"
        ) from error
    figure = figures.Figure(figsize=(1.2 * len(comparisons) + 2.5, 4.2), layout="constrained")
    backend.FigureCanvasAgg(figure)
    axes = figure.subplots()
    kinds = {
        "best fixed": ("#8d99ae", [each.fixed[each.best] / each.plain for each in comparisons]),
        "window": ("#edae49", [each.window / each.plain for each in comparisons]),
        "goodput": ("#d1495b", [each.goodput / each.plain for each in comparisons]),
        "clairvoyant": (
            "#dfe3ea",
            [(each.clairvoyant or 0.0) / each.plain for each in comparisons],
        ),
    }
    for index, (name, (colour, heights)) in enumerate(kinds.items()):
        places = [number + 0.2 * index for number in range(len(comparisons))]
        axes.bar(places, heights, width=0.2, label=name, color=colour)
    axes.axhline(1.0, color="#2b2d42", linewidth=0.8)
    axes.set_xticks([number + 0.3 for number in range(len(comparisons))])
    names = [each.world.name.replace(", ", "\n") for each in comparisons]
    axes.set_xticklabels(names, fontsize=8)
    axes.set_ylabel("tokens per second, times plain")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=4, fontsize=8)
    try:
        figure.savefig(file, dpi=150)
    except ValueError as error:
        raise ConfigError(f"cannot draw {file}: {error}; name it .svg or .png") from None
