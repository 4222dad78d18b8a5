"""`outrider train evaluate`: whether a draft pays, before it is served."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from outrider.cli import options
from outrider.cli.console import (
    LogLevel,
    check_writable,
    progress_bars,
    set_up_logs,
    write_json,
)
from outrider.config import Settings
from outrider.errors import ConfigError
from outrider.models.loading import in_daemon_thread
from outrider.types import VerificationMethod

if TYPE_CHECKING:
    from outrider.train.evaluate import Evaluation
    from outrider.train.store import Examples

__all__ = ["evaluate"]

_OUTPUT = "Output"
_ANSWERS = "Answers"


def evaluate(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Answers of the target, made by `outrider train data`."
        ),
    ],
    draft: Annotated[
        list[str],
        typer.Option(
            "--draft",
            metavar="DRAFTER",
            help="A model, layers:N (the target's first N layers), ngram or suffix. May be given "
            "several times; the others are compared with the first.",
        ),
    ],
    lookahead: Annotated[
        int,
        typer.Option(
            "--lookahead",
            min=1,
            max=64,
            help="Tokens drafted, where the table shows tokens per round.",
        ),
    ] = 4,
    max_lookahead: Annotated[
        int,
        typer.Option("--max-lookahead", min=1, max=64, help="The longest that may prove the best."),
    ] = 16,
    verifier: Annotated[
        Literal["matching", "token", "block"] | None,
        typer.Option(
            "--verifier",
            help="How drafts of models are judged above temperature 0. Default: "
            "speculation.verification, as requests without a seed are.",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            help="Judge by the answers of this one alone. Default: each one in turn.",
            rich_help_panel=_ANSWERS,
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Judge by all answers, not just by those held out: for a folder that no draft "
            "was trained on.",
            rich_help_panel=_ANSWERS,
        ),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            help="So many prompts at most, evenly spread.",
            rich_help_panel=_ANSWERS,
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write all of it.", rich_help_panel=_OUTPUT),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw acceptance by place and speed-up by lookahead: .svg or .png.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    config: options.Config = None,
    target: options.Target = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    threads: options.Threads = None,
    max_context: options.MaxContext = None,
    kv_memory: options.KvMemory = None,
) -> None:
    """Say whether drafts pay for a target and its traffic, before any is served.

    Drafts read the target's own answers to prompts that they were not trained on. Tokens per
    round are exact for that text under the rule of verification that serves; what steps of target
    and draft take is measured on the spot, with nothing else running if it is to mean anything.

      outrider train evaluate data/my-model --target my-model --draft draft-a --draft ngram

    Exit codes: 0 judged, whatever the verdict, 1 failed, 2 misused.
    """
    from outrider.train.report import as_json, print_report  # noqa: PLC0415 # needs the extra
    from outrider.train.store import Part, read_examples  # noqa: PLC0415 # likewise

    set_up_logs(LogLevel.WARNING)
    for file in (json, plot):
        if file is not None:
            check_writable(file)
    if len(set(draft)) < len(draft):
        raise ConfigError(f"--draft names {', '.join(draft)}; name each once")
    settings = options.build_settings(
        config,
        target=target,
        dtype=dtype,
        device=device,
        threads=threads,
        max_sessions=1,
        max_context=max_context,
        kv_memory=kv_memory,
    )
    examples = read_examples(folder, Part.ALL if everything else Part.HELD_OUT)
    chosen = _by_temperature(examples, folder, temperature, limit)
    preferred = VerificationMethod(verifier or settings.speculation.verification)
    lookaheads = (lookahead, max(lookahead, max_lookahead))
    found = asyncio.run(_evaluate(settings, examples, chosen, draft, preferred, lookaheads))
    console = Console(highlight=False)
    for each in found:
        print_report(each, console)
    if json is not None:
        write_json(json, as_json(found))
    if plot is not None:
        from outrider.train.plot import draw  # noqa: PLC0415 # a second to import

        draw(found, plot)


def _by_temperature(
    examples: Examples, folder: Path, wanted: float | None, limit: int | None
) -> dict[float, list[int]]:
    """Which examples to judge by, for each temperature."""
    if not len(examples):
        raise ConfigError(
            f"no prompt of {folder} is held out; make data with --holdout, or give --all if no "
            "draft was trained on any of it"
        )
    found: dict[float, list[int]] = {}
    for place, entry in enumerate(examples.entries):
        found.setdefault(entry.temperature, []).append(place)
    if wanted is not None:
        if wanted not in found:
            there = ", ".join(f"{each:g}" for each in sorted(found))
            raise ConfigError(
                f"--temperature is {wanted:g}, but {folder} holds answers at {there}; name one of "
                "these"
            )
        found = {wanted: found[wanted]}
    if limit is not None:
        found = {t: _spread(places, limit) for t, places in found.items()}
    return dict(sorted(found.items()))


def _spread(places: list[int], limit: int) -> list[int]:
    count = min(limit, len(places))
    return [places[index * len(places) // count] for index in range(count)]


async def _evaluate(
    settings: Settings,
    examples: Examples,
    chosen: dict[float, list[int]],
    drafts: list[str],
    preferred: VerificationMethod,
    lookaheads: tuple[int, int],
) -> list[Evaluation]:
    from outrider.targets import create_target  # noqa: PLC0415 # `outrider --help` loads no engine
    from outrider.train.evaluate import check_source, evaluate  # noqa: PLC0415 # likewise
    from outrider.train.opening import open_candidate  # noqa: PLC0415 # likewise

    with progress_bars() as loading:
        target, lane = await in_daemon_thread(partial(create_target, settings, progress=loading))
    try:
        if lane is None:
            raise ConfigError(
                f"{settings.engine.target} does not run on this process's engine, so its steps "
                "cannot be measured; name a model with --target"
            )
        info = await target.describe()
        check_source(examples.source, info)
        candidates = []
        for spec in drafts:
            with progress_bars() as loading:
                opening = partial(open_candidate, spec, info, lane, settings, progress=loading)
                candidates.append(await in_daemon_thread(opening))
        found = []
        for temperature, places in chosen.items():
            with progress_bars(MofNCompleteColumn(), TimeRemainingColumn()) as judging:
                evaluation = await evaluate(
                    examples,
                    places,
                    lane,
                    candidates,
                    temperature=temperature,
                    preferred=preferred,
                    lookahead=lookaheads[0],
                    most=lookaheads[1],
                    progress=partial(judging, f"temperature {temperature:g}"),
                )
            found.append(evaluation)
        return found
    finally:
        await target.close()
