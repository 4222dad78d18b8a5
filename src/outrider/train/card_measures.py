"""What `outrider train evaluate` wrote, as tables of a card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from outrider.errors import ConfigError

__all__ = ["check_measures", "measures_tables"]

_HEAD: Final = (
    "| answers | prompts | draft | verified by | acceptance | tokens per round | best k | speed-up "
    "| |",
    "|---|---|---|---|---|---|---|---|---|",
)


def check_measures(measures: Mapping[str, Any], model_hash: str) -> None:
    """See to it that measures are of one target, and of the form that `report.as_json` writes.

    Raises:
        ConfigError: they are not.
    """
    try:
        hashes = {str(each["source"]["model_hash"]) for each in measures["evaluations"]}
        list(measures_tables(measures))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ConfigError(
            f"the evaluation is none that `outrider train evaluate --json` wrote "
            f"({type(error).__name__}: {error}); name another file"
        ) from None
    if others := sorted(hashes - {model_hash}):
        raise ConfigError(
            f"the evaluation is for a target of the hash {others[0][:12]}, and this one has "
            f"{model_hash[:12]}; evaluate the draft with the target that it is exported for"
        )


def measures_tables(measures: Mapping[str, Any]) -> Iterator[str]:
    """Lines of Markdown. `measures` are checked, or raise what `check_measures` translates."""
    for place, evaluation in enumerate(measures["evaluations"]):
        if place:
            yield ""
        yield (
            f"At temperature {evaluation['temperature']:g}, predicted from "
            f"{evaluation['tokens']:,} tokens of {evaluation['prompts']:,} prompts; tokens per "
            f"round are those at a lookahead of {evaluation['lookahead']}. In brackets: 95% over "
            "prompts."
        )
        yield ""
        yield from _HEAD
        lookahead = evaluation["lookahead"]
        for draft in evaluation["drafts"]:
            yield _row("all", evaluation["prompts"], draft, lookahead)
        for name, category in evaluation["categories"].items():
            for draft in category["drafts"]:
                yield _row(name, category["prompts"], draft, lookahead)


def _row(name: str, prompts: int, draft: Mapping[str, Any], lookahead: int) -> str:
    best = draft["best"]
    cells = (
        name,
        f"{prompts:,}",
        draft["name"],
        draft["method"],
        f"{draft['acceptance']:.1%}",
        _interval(draft["tokens_per_round"][lookahead]),
        str(best),
        _interval(draft["speedup"][best]),
        draft["verdict"],
    )
    return f"| {' | '.join(_cell(each) for each in cells)} |"


def _interval(interval: Mapping[str, float]) -> str:
    return f"{interval['value']:.2f} ({interval['low']:.2f} to {interval['high']:.2f})"


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")
