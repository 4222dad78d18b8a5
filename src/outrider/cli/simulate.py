"""`outrider simulate`: what would each controller have made of recorded acceptance?"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn

from outrider.cli.console import check_writable, progress_bars, write_json
from outrider.errors import ConfigError
from outrider.replay import (
    Comparison,
    Trace,
    World,
    as_json,
    as_markdown,
    compare,
    concatenate,
    draw,
    load_traces,
)

__all__ = ["simulate"]

_TRACES = "Traces"
_COSTS = "Costs (several values, separated by commas, make a world each)"
_LOOKAHEADS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)


def simulate(
    traces: Annotated[list[Path], typer.Argument(help="JSONL files, a trace a line.")],
    field: Annotated[
        str | None,
        typer.Option(
            "--field",
            help="Take this list of a line, whose numbers count the target's own token too.",
            rich_help_panel=_TRACES,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="First traces of each file.", rich_help_panel=_TRACES),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", min=1, help="First of each trace.", rich_help_panel=_TRACES),
    ] = None,
    join: Annotated[
        int,
        typer.Option(
            "--join",
            min=1,
            help="Traces to make one session of, which changes where they meet.",
            rich_help_panel=_TRACES,
        ),
    ] = 1,
    rtt: Annotated[str, typer.Option("--rtt", help="In ms.", rich_help_panel=_COSTS)] = "0.3,10,30",
    batch: Annotated[
        str, typer.Option("--batch", help="Sessions in a step.", rich_help_panel=_COSTS)
    ] = "1,64,256",
    base: Annotated[
        float, typer.Option("--base", help="ms of a step.", rich_help_panel=_COSTS)
    ] = 7.1,
    per_token: Annotated[
        float,
        typer.Option("--per-token", help="ms per token of a batch.", rich_help_panel=_COSTS),
    ] = 0.021,
    draft: Annotated[
        float, typer.Option("--draft", help="ms per drafted token.", rich_help_panel=_COSTS)
    ] = 1.0,
    jitter: Annotated[
        float,
        typer.Option(
            "--jitter",
            min=0.0,
            max=2.0,
            help="Noise on every time: standard deviation of its logarithm.",
            rich_help_panel=_COSTS,
        ),
    ] = 0.0,
    swing: Annotated[
        bool,
        typer.Option(
            "--swing",
            help="The batch falls to a sixteenth and rises again, every 20 s.",
            rich_help_panel=_COSTS,
        ),
    ] = False,
    overlap: Annotated[
        float | None,
        typer.Option(
            "--ahead",
            min=0.0,
            max=1.0,
            help="Drafts may be made ahead; this share of one takes none of the target's time.",
            rich_help_panel=_COSTS,
        ),
    ] = None,
    maximum: Annotated[
        int, typer.Option("--max-lookahead", min=1, max=64, help="Longest draft.")
    ] = 16,
    seed: Annotated[int, typer.Option("--seed", help="Of the order and the noise.")] = 0,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it, as .svg or .png.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write everything that was found."),
    ] = None,
) -> None:
    """Compare controllers over recorded acceptance, in virtual time.

    Plays every trace as a session, with each fixed lookahead, the window
    controller and the goodput controller, and prints how much each one gets
    of the best fixed lookahead, and of what a clairvoyant would get.
    """
    for file in (plot, json_file):
        if file is not None:
            check_writable(file)
    worlds = [
        World(
            rtt_ms=rtt_ms,
            batch=int(sessions),
            base_ms=base,
            token_ms=per_token,
            draft_ms=draft,
            jitter=jitter,
            swing=swing,
            ahead=overlap is not None,
            overlap=overlap or 0.0,
        )
        for rtt_ms in _numbers(rtt, "--rtt")
        for sessions in _numbers(batch, "--batch")
    ]
    played = _load(traces, field=field, limit=limit, tokens=tokens, join=join, seed=seed)
    comparisons: list[Comparison] = []
    with progress_bars(MofNCompleteColumn()) as advance:
        lookaheads = [each for each in _LOOKAHEADS if each <= maximum]
        for each in compare(played, worlds, lookaheads=lookaheads, maximum=maximum, seed=seed):
            comparisons.append(each)
            advance("worlds", len(comparisons), len(worlds))
    typer.echo(f"{len(played)} sessions, {sum(map(len, played))} tokens\n")
    typer.echo(as_markdown(comparisons))
    if plot is not None:
        draw(comparisons, plot)
    if json_file is not None:
        write_json(json_file, as_json(comparisons))


def _load(
    files: list[Path],
    *,
    field: str | None,
    limit: int | None,
    tokens: int | None,
    join: int,
    seed: int,
) -> list[Trace]:
    loaded = [
        trace if tokens is None else trace.cut(tokens)
        for file in files
        for trace in load_traces(file, field=field)[:limit]
    ]
    random.Random(seed).shuffle(loaded)  # noqa: S311 # an order, no secret
    return [concatenate(loaded[at : at + join]) for at in range(0, len(loaded), join)]


def _numbers(values: str, option: str) -> list[float]:
    try:
        return [float(value) for value in values.split(",")]
    except ValueError:
        raise ConfigError(
            f"{option} is {values!r}; give numbers separated by commas, such as 0.3,10"
        ) from None
