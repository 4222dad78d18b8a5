"""`outrider train data`: the target's answers to prompts, as training data."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from outrider.cli import options
from outrider.cli.console import LogLevel, complain, progress_bars, set_up_logs
from outrider.config import Settings
from outrider.errors import ConfigError
from outrider.models.loading import in_daemon_thread

if TYPE_CHECKING:
    from outrider.train.data import Tally
    from outrider.train.prompts import Prompt
    from outrider.train.records import Sampling

__all__ = ["data"]

_ANSWERS = "Answers"
_PROMPTS = "Prompts"
_KEPT = "What is kept"
_INTERRUPTED = 130


def data(
    prompts: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help='JSONL, a prompt a line: {"turns": ["a question", "a second one"]} or '
            '{"messages": [...]} for a chat, {"text": "..."} to be continued; perhaps with a '
            '"category". Or .txt, whose paragraphs are continued.',
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FOLDER", help="Gets the shards; goes on where they end."),
    ],
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            help="So many prompts of each file, evenly spread.",
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(
            "--exclude",
            metavar="FILE",
            help="Drop prompts that have a turn in common with this file's. May be given several "
            "times.",
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    holdout: Annotated[
        float,
        typer.Option(
            "--holdout",
            min=0.0,
            max=1.0,
            help="Share of the prompts that no draft is trained on, for `outrider train evaluate`; "
            "a hash of the prompt's text decides which.",
            rich_help_panel=_PROMPTS,
        ),
    ] = 0.1,
    temperature: Annotated[
        str,
        typer.Option(
            "--temperature",
            help="What the draft will be served at; 0 is greedy. Several, as in 0,1: every prompt "
            "is answered at each.",
            rich_help_panel=_ANSWERS,
        ),
    ] = "0",
    top_p: Annotated[float, typer.Option("--top-p", rich_help_panel=_ANSWERS)] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", rich_help_panel=_ANSWERS)] = 0,
    min_p: Annotated[float, typer.Option("--min-p", rich_help_panel=_ANSWERS)] = 0.0,
    seed: Annotated[
        int, typer.Option("--seed", help="Fixes all answers.", rich_help_panel=_ANSWERS)
    ] = 0,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Per answer.", rich_help_panel=_ANSWERS)
    ] = 256,
    logits: Annotated[
        int,
        typer.Option(
            "--logits",
            min=1,
            max=4096,
            help="Likeliest tokens kept with every token made.",
            rich_help_panel=_KEPT,
        ),
    ] = 64,
    temperatures: Annotated[
        str,
        typer.Option(
            "--temperatures",
            help="Further temperatures to be trained at, besides 1 and those of --temperature.",
            rich_help_panel=_KEPT,
        ),
    ] = "",
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            min=1,
            max=4096,
            help="Conversations at a time. Default: engine.max_sessions.",
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
    """Let the target answer prompts, and keep its answers to train a draft on.

    The target runs as it is served (give the same --dtype), in this process.

      outrider train data chats.jsonl code.jsonl --target my-model --temperature 0,1 \\
          --out data/my-model

    Ctrl-C, or whatever else ends the run, loses little: the same command goes on behind the last
    whole shard. Another target, other prompts or other settings want another folder.

    Exit codes: 0 all is answered, 1 failed, 2 misused, 130 interrupted.
    """
    from outrider.train.data_report import report  # noqa: PLC0415 # needs the extra's libraries
    from outrider.train.prompts import read_prompts  # noqa: PLC0415 # likewise
    from outrider.train.records import Sampling  # noqa: PLC0415 # likewise

    set_up_logs(LogLevel.WARNING)
    sampling = Sampling(
        temperatures=_numbers("--temperature", temperature) or (0.0,),
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        max_tokens=max_tokens,
    )
    settings = options.build_settings(
        config,
        target=target,
        dtype=dtype,
        device=device,
        threads=threads,
        max_sessions=concurrency,
        max_context=max_context,
        kv_memory=kv_memory,
    )
    kept = (logits, _numbers("--temperatures", temperatures), holdout)
    asked = read_prompts(prompts, limit=limit, exclude=exclude or ())
    try:
        tally = asyncio.run(_make(settings, out, asked, sampling, kept))
    except KeyboardInterrupt:
        complain(f"stopped; {out} keeps whole shards, and the same command goes on behind them")
        raise typer.Exit(_INTERRUPTED) from None
    report(out, tally, Console(highlight=False))


def _numbers(name: str, given: str) -> tuple[float, ...]:
    """Temperatures from a list with commas, ascending, each once."""
    try:
        found = {float(each) for each in given.split(",") if each.strip()}
    except ValueError:
        raise ConfigError(f"{name} is {given!r}; write numbers, such as 0,1") from None
    if not all(0.0 <= each <= 100.0 for each in found):
        raise ConfigError(f"{name} is {given!r}; temperatures lie in 0..100")
    return tuple(sorted(found))


async def _make(
    settings: Settings,
    out: Path,
    prompts: list[Prompt],
    sampling: Sampling,
    kept: tuple[int, tuple[float, ...], float],
) -> Tally:
    from outrider.targets import create_target  # noqa: PLC0415 # `outrider --help` loads no engine
    from outrider.train.data import make_data, source_of  # noqa: PLC0415 # likewise
    from outrider.train.data_report import Watch  # noqa: PLC0415 # likewise

    with progress_bars() as loading:
        target, lane = await in_daemon_thread(partial(create_target, settings, progress=loading))
    try:
        if lane is None:
            raise ConfigError(
                f"{settings.engine.target} does not run on this process's engine, so its logits "
                "cannot be kept; name a model with --target"
            )
        info = await target.describe()
        logits, temperatures, holdout = kept
        source = source_of(
            info, prompts, sampling, k=logits, temperatures=temperatures, holdout=holdout
        )
        watch = Watch()
        with watch.bars:
            return await make_data(
                out,
                lane,
                info,
                source,
                prompts,
                streams=settings.engine.max_sessions,
                on_answer=watch.answered,
                on_shard=watch.written,
            )
    finally:
        await target.close()
