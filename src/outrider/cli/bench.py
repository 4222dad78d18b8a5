"""`outrider bench`: how fast are answers, over HTTP or in this process?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from outrider import __version__
from outrider.bench import (
    Grouping,
    Prompt,
    Recording,
    as_json,
    measure,
    read_prompts,
    render,
    warm_up,
)
from outrider.cli import options
from outrider.cli.configurations import (
    Configuration,
    Wire,
    baseline_of,
    first_configuration,
    open_subjects,
)
from outrider.cli.console import (
    LogLevel,
    check_writable,
    progress_bars,
    set_up_logs,
    write_json,
)

__all__ = ["bench"]

_SERVER = "Server"
_LOAD = "Load"
_REQUEST = "Requests"
_INTERRUPTED = 130
_FAILED = 1


class GroupBy(StrEnum):
    """What rows of the comparison stand for."""

    SOURCE = "source"
    CATEGORY = "category"


_GROUPINGS: Final[dict[GroupBy, Grouping]] = {
    GroupBy.SOURCE: lambda prompt: prompt.source,
    GroupBy.CATEGORY: lambda prompt: prompt.category,
}


def bench(
    prompts: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help='JSONL, a prompt a line: {"turns": ["a question", "a second one"]} for a chat, or '
            '{"prompt": "a text to continue"}; perhaps with a "category".',
        ),
    ],
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            "--baseline",
            metavar="WHAT",
            help="Measure a second configuration in turn with the first, and compare. It differs "
            "in WHAT: plain (no speculation), another server's URL, or NAME=VALUE with a field of "
            "the request (speculation.drafter=ngram, top_p=0.9) or, in this process, a flag "
            "(draft=none, dtype=bfloat16). May be given several times.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="Of a running OpenAI-compatible server; without it, a pipeline in this process is "
            "measured.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="Its id, if the server lists several.", rich_help_panel=_SERVER
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="OPENAI_API_KEY",
            help="Sent as a bearer token.",
            show_envvar=True,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.1, help="For one request, in s.", rich_help_panel=_SERVER),
    ] = 600.0,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency",
            min=1,
            max=1024,
            help="Conversations at a time; when one ends, the next begins.",
            rich_help_panel=_LOAD,
        ),
    ] = 1,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            help="So many prompts of each file, evenly spread.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    turns: Annotated[
        int | None,
        typer.Option(
            "--turns",
            min=1,
            help="Only the first so many turns of each prompt.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    warm_up_requests: Annotated[
        int | None,
        typer.Option(
            "--warm-up",
            min=1,
            metavar="N",
            help="Requests to each configuration first, whose times do not count. Default: one per "
            "stream.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Per answer.", rich_help_panel=_REQUEST)
    ] = 128,
    temperature: Annotated[
        float,
        typer.Option("--temperature", min=0.0, help="0 is greedy.", rich_help_panel=_REQUEST),
    ] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Sent with every request.", rich_help_panel=_REQUEST),
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="Answers all of --max-tokens, where the server can do that.",
            rich_help_panel=_REQUEST,
        ),
    ] = False,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME=JSON",
            help="Any other field of the request, such as top_p=0.9 or speculation.max_lookahead=8."
            " May be given several times.",
            rich_help_panel=_REQUEST,
        ),
    ] = None,
    group_by: Annotated[
        GroupBy,
        typer.Option("--by", help="Compare by file or by the prompts' category."),
    ] = GroupBy.SOURCE,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write everything, every request included."),
    ] = None,
    config: options.Config = None,
    target: options.Target = None,
    draft: options.Draft = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    threads: options.Threads = None,
    max_sessions: options.MaxSessions = None,
    max_context: options.MaxContext = None,
    kv_memory: options.KvMemory = None,
    controller: options.Controller = None,
    lookahead: options.Lookahead = None,
    max_lookahead: options.MaxLookahead = None,
) -> None:
    """Measure how fast answers come, alone or against a second configuration.

    A server that runs already, with eight conversations at a time:

      outrider bench prompts.jsonl --url http://127.0.0.1:8000 --concurrency 8

    A model in this process, with and without speculation, prompt by prompt:

      outrider bench prompts.jsonl --draft ngram --baseline plain

    The same for a server of ours, and one server against another:

      outrider bench prompts.jsonl --url http://127.0.0.1:8000 --baseline plain
      outrider bench prompts.jsonl --url http://127.0.0.1:8000 \\
          --baseline http://127.0.0.1:8001

    Two ways to judge drafts, on 20 prompts of the file, with all numbers kept:

      outrider bench prompts.jsonl --limit 20 --draft layers:10 --temperature 1 \\
          --baseline speculation.verification=matching --json result.json

    Ctrl-C ends a run early and reports what was measured until then.

    Exit codes: 0 measured, 1 failed or nobody answered, 2 misused,
    130 interrupted.
    """
    if json_file is not None:
        check_writable(json_file)
    set_up_logs(LogLevel.WARNING)
    flags = {
        "target": target,
        "draft": draft,
        "dtype": dtype,
        "device": device,
        "threads": threads,
        "max_sessions": max_sessions,
        "max_context": max_context,
        "kv_memory": kv_memory,
        "controller": controller,
        "lookahead": lookahead,
        "max_lookahead": max_lookahead,
    }
    fields: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
    if seed is not None:
        fields["seed"] = seed
    if ignore_eos:
        fields["ignore_eos"] = True
    fields |= dict(options.json_parameter(given) for given in param or [])
    first = first_configuration(url, model, flags, fields)
    configurations = [first, baseline_of(first, baseline)] if baseline else [first]
    asked = read_prompts(prompts, limit, turns)
    wire = Wire(api_key, timeout, concurrency)
    recording = asyncio.run(
        _run(configurations, asked, config, wire, warm_up_requests or concurrency)
    )
    console = Console(highlight=False)
    sources = ", ".join(dict.fromkeys(prompt.source for prompt in asked))
    console.print(
        f"{len(asked)} prompts of {sources}; {concurrency} at a time, up to {max_tokens} tokens, "
        f"temperature {temperature:g}",
        markup=False,
    )
    render(recording, console, _GROUPINGS[group_by])
    if json_file is not None:
        settings = {
            "outrider": __version__,
            "prompts": [str(file) for file in prompts],
            "limit": limit,
            "turns": turns,
            "concurrency": concurrency,
            "configurations": [asdict(each) for each in configurations],
        }
        write_json(json_file, as_json(recording, settings, _GROUPINGS[group_by]))
    raise typer.Exit(_exit_code(recording))


async def _run(
    configurations: Sequence[Configuration],
    prompts: Sequence[Prompt],
    config: Path | None,
    wire: Wire,
    warm_ups: int,
) -> Recording:
    clock = time.perf_counter
    async with open_subjects(configurations, config, wire, clock) as subjects:
        recording = Recording([subject.label for subject in subjects])
        with progress_bars(MofNCompleteColumn(), TimeRemainingColumn()) as progress:
            await warm_up(subjects, prompts, warm_ups, wire.concurrency, progress)
            try:
                await measure(recording, subjects, prompts, wire.concurrency, clock, progress)
            except asyncio.CancelledError:  # Ctrl-C: what was measured until now is the result
                recording.interrupted = True
    return recording


def _exit_code(recording: Recording) -> int:
    if recording.interrupted:
        return _INTERRUPTED
    answered = (
        any(record.answer is not None for record in recording.records_of(subject))
        for subject in range(len(recording.labels))
    )
    return 0 if all(answered) else _FAILED
