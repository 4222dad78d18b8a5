"""What an evaluation says, as tables for people and as values for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.train.costs import Costs
from outrider.train.evaluate import Evaluation
from outrider.train.forecast import Forecast, Interval, Verdict

__all__ = ["as_json", "print_report"]

_FEW_PROMPTS: Final = 20
"""With fewer, intervals over prompts are too narrow."""

_STYLES: Final = {
    Verdict.PAYS: "bold green",
    Verdict.UNCLEAR: "bold yellow",
    Verdict.NEVER: "bold red",
}


def print_report(evaluation: Evaluation, console: Console) -> None:
    """Tables by draft and by category, and a sentence about each draft."""
    source, k = evaluation.source, evaluation.lookahead
    console.print(
        f"\n{source.model_id} ({source.dtype}) at temperature {evaluation.temperature:g}: "
        f"{evaluation.tokens} tokens of {evaluation.prompts} prompts, the first token of each "
        "answer left out",
        markup=False,
        soft_wrap=True,
    )
    console.print(_drafts(evaluation.drafts, k))
    console.print(_other_estimates(evaluation.drafts, k))
    if len(evaluation.categories) > 1:
        console.print(_categories(evaluation))
    console.print(_costs(evaluation.costs), markup=False, soft_wrap=True)
    for draft in evaluation.drafts:
        console.print(_sentence(draft), soft_wrap=True)
    for note in _notes(evaluation):
        console.print(note, style="dim", markup=False, soft_wrap=True)


def as_json(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Everything that was found; times in seconds, lists by lookahead from 0 on."""
    return {"evaluations": [_values(each) for each in evaluations]}


def _values(evaluation: Evaluation) -> dict[str, Any]:
    costs = evaluation.costs
    return {
        "source": asdict(evaluation.source),
        "temperature": evaluation.temperature,
        "lookahead": evaluation.lookahead,
        "prompts": evaluation.prompts,
        "tokens": evaluation.tokens,
        "context": costs.context,
        "target_step_s": np.median(costs.target_s, axis=0).tolist(),
        "drafts": [asdict(draft) for draft in evaluation.drafts],
        "categories": {
            name: {"prompts": prompts, "drafts": [asdict(draft) for draft in drafts]}
            for name, (prompts, drafts) in evaluation.categories.items()
        },
    }


def _drafts(drafts: Sequence[Forecast], k: int) -> Table:
    per_round = f"tokens/round, k = {k}"
    table = Table("draft", "rule", "acceptance", per_round, "speed-up", "at k", box=None)
    for draft in drafts:
        table.add_row(
            Text(draft.name),
            str(draft.method),
            f"{draft.acceptance:.1%}",
            _interval(draft.tokens_per_round[k]),
            _interval(draft.speedup[draft.best]),
            str(draft.best),
        )
    return table


def _other_estimates(drafts: Sequence[Forecast], k: int) -> Table:
    per_round = f"tokens/round, k = {k}"
    table = Table(per_round, "as served", "all places", "independent", box=None)
    for draft in drafts:
        table.add_row(
            Text(draft.name),
            f"{draft.tokens_per_round[k].value:.2f}",
            f"{draft.all_places[k]:.2f}",
            f"{draft.independent[k]:.2f}",
        )
    return table


def _categories(evaluation: Evaluation) -> Table:
    k = evaluation.lookahead
    per_round = f"tokens/round, k = {k}"
    table = Table("category", "prompts", "draft", per_round, "speed-up", "at k", box=None)
    for name, (prompts, drafts) in evaluation.categories.items():
        for index, (draft, overall) in enumerate(zip(drafts, evaluation.drafts, strict=True)):
            table.add_row(
                Text("" if index else name),
                "" if index else str(prompts),
                Text(draft.name),
                _interval(draft.tokens_per_round[k]),
                _interval(draft.speedup[overall.best]),
                str(overall.best),
            )
    return table


def _costs(costs: Costs) -> str:
    steps = np.median(costs.target_s, axis=0) * 1000
    shown = [rows for rows in (0, 1, 2, 4, 8, 16) if rows < steps.size]
    target = ", ".join(f"{steps[rows]:.1f}" for rows in shown)
    drafts = ", ".join(f"{name} {_milliseconds(costs, name)}" for name in costs.token_s)
    return (
        f"Measured behind {costs.context} tokens: a step of the target over "
        f"{', '.join(str(rows + 1) for rows in shown)} tokens takes {target} ms; a draft: {drafts}."
    )


def _milliseconds(costs: Costs, name: str) -> str:
    token, whole = (float(np.median(each[name])) for each in (costs.token_s, costs.round_s))
    return f"{token * 1000:.2f} ms a token" if token else f"{whole * 1000:.2f} ms in all"


def _sentence(draft: Forecast) -> Text:
    at_best = draft.speedup[draft.best]
    ends = f"{at_best.low:.2f} to {at_best.high:.2f} times plain decoding"
    match draft.verdict:
        case Verdict.PAYS:
            said = f" pays: {ends} at k = {draft.best}"
        case Verdict.NEVER:
            said = f" will not pay: at no lookahead; at its best, k = {draft.best}, {ends}"
        case Verdict.UNCLEAR:
            said = f" is not shown to pay: {ends} at k = {draft.best}; more prompts may tell"
    if draft.against_first is not None:
        said += f"; {_interval(draft.against_first)} times the first draft's speed"
    return Text.assemble(draft.name, (said, _STYLES[draft.verdict]), ".")


def _notes(evaluation: Evaluation) -> list[str]:
    notes = [
        "In brackets: 95% over prompts, and for speed-ups over repeats of the measured times. "
        "Speed-ups count steps of target and draft alone, one sequence at a time: no queueing, no "
        "network. All places: if rounds began anywhere alike; independent: if, besides, tokens "
        "were accepted independently of each other.",
    ]
    if evaluation.prompts < _FEW_PROMPTS:
        notes.append(
            f"{evaluation.prompts} prompts are few: intervals over fewer than {_FEW_PROMPTS} are "
            "too narrow."
        )
    return notes


def _interval(interval: Interval) -> str:
    return f"{interval.value:.2f} ({interval.low:.2f}-{interval.high:.2f})"
