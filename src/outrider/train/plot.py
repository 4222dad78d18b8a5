"""An evaluation as a picture: how far drafts hold, and what they gain at which lookahead."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from outrider.errors import ConfigError
from outrider.train.evaluate import Evaluation
from outrider.train.forecast import Forecast

__all__ = ["draw"]

_LEAST_ROUNDS: Final = 20
"""Shares of fewer rounds are not drawn: they are noise."""

_COLOURS: Final = ("#d1495b", "#2e86ab", "#edae49", "#3b7a57", "#8d6a9f", "#5c677d")


def draw(evaluations: Sequence[Evaluation], file: Path) -> None:
    """Two panels for each temperature; the format follows the file's name.

    Raises:
        ConfigError: matplotlib is not installed, knows no such format, or cannot write there.
    """
    try:
        backend: Any = importlib.import_module("matplotlib.backends.backend_agg")
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigError(
            "a plot needs matplotlib; add it with pip install 'outrider[train]'"
        ) from error
    figure = figures.Figure(figsize=(9.5, 3.9 * len(evaluations)), layout="constrained")
    backend.FigureCanvasAgg(figure)
    panels = figure.subplots(len(evaluations), 2, squeeze=False)
    for (left, right), evaluation in zip(panels, evaluations, strict=True):
        for index, draft in enumerate(evaluation.drafts):
            colour = _COLOURS[index % len(_COLOURS)]
            _acceptance(left, draft, colour)
            _speedup(right, draft, colour)
        _dress(left, right, evaluation)
    try:
        figure.savefig(file, dpi=150)
    except ValueError as error:
        raise ConfigError(f"cannot draw {file}: {error}; name it .svg or .png") from None
    except OSError as error:
        raise ConfigError(
            f"cannot write {file}: {error.strerror}; name a file in a folder of yours"
        ) from None


def _acceptance(axes: Any, draft: Forecast, colour: str) -> None:
    """At the longest lookahead, which reaches all places."""
    shares, reached = draft.by_place[-1], draft.reached[-1]
    places = [place for place, rounds in enumerate(reached) if rounds >= _LEAST_ROUNDS]
    axes.plot(
        [place + 1 for place in places],
        [shares[place] for place in places],
        "o-",
        color=colour,
        markersize=3,
    )


def _speedup(axes: Any, draft: Forecast, colour: str) -> None:
    lookaheads = range(len(draft.speedup))
    axes.fill_between(
        lookaheads,
        [each.low for each in draft.speedup],
        [each.high for each in draft.speedup],
        color=colour,
        alpha=0.15,
        linewidth=0,
    )
    values = [each.value for each in draft.speedup]
    label = f"{draft.name}: {draft.verdict}"
    axes.plot(lookaheads, values, "-", color=colour, label=label)
    axes.plot([draft.best], [values[draft.best]], "o", color=colour, markersize=5)


def _dress(left: Any, right: Any, evaluation: Evaluation) -> None:
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    title = f"{evaluation.source.model_id}, temperature {evaluation.temperature:g}"
    left.set_title(title, loc="left", fontsize=10)
    left.set_ylim(0, 1.02)
    left.set_xlabel("token of the draft")
    left.set_ylabel("accepted, if all before it were")
    right.axhline(1.0, color="#2b2d42", linewidth=0.8)
    right.set_ylim(bottom=0)
    right.set_xlabel("lookahead k")
    right.set_ylabel("predicted speed, times plain")
    right.legend(frameon=False, fontsize=8)
