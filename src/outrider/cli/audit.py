"""`outrider audit`: is a running server's output the same with and without speculation?"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from outrider.audit import (
    BUILT_IN_PROMPTS,
    AuditPlan,
    Verdict,
    as_json,
    load_prompts,
    render,
    run_audit,
)
from outrider.cli import options
from outrider.cli.console import check_writable, progress_bars, write_json

__all__ = ["audit"]

_SERVER = "Server"
_SPECULATION = "Speculation (Outrider only)"
_SAMPLING = "Sampling"
_EFFORT = "Effort"
_EXIT_CODES = {Verdict.NO_DIFFERENCE: 0, Verdict.DIFFERS: 1, Verdict.INCONCLUSIVE: 3}


def audit(
    url: Annotated[str, typer.Argument(help="Of a running server, such as http://127.0.0.1:8000.")],
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="URL",
            help="A server of the same model that never speculates. Needed unless URL is Outrider, "
            "where speculation is switched per request.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="Its id, if the server lists several.", rich_help_panel=_SERVER
        ),
    ] = None,
    baseline_model: Annotated[
        str | None,
        typer.Option("--baseline-model", help="Its id at the baseline.", rich_help_panel=_SERVER),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="OPENAI_API_KEY",
            help="Sent to both servers as a bearer token.",
            show_envvar=True,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.1, help="For one request, in s.", rich_help_panel=_SERVER),
    ] = 120.0,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help='JSONL, a prompt a line: {"prompt": "a text"}, {"token_ids": [0, 1]} or {"turns": '
            '["a question to chat about"]}. Default: six short texts.',
            rich_help_panel=_EFFORT,
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(
            "--samples", min=1, help="Per prompt, with and without.", rich_help_panel=_EFFORT
        ),
    ] = 1000,
    tokens: Annotated[
        int,
        typer.Option(
            "--tokens", min=1, max=64, help="First tokens compared.", rich_help_panel=_EFFORT
        ),
    ] = 3,
    generate: Annotated[
        int | None,
        typer.Option(
            "--generate",
            min=1,
            help="Tokens generated per sample. Those past --tokens give drafts room; default: 3.",
            rich_help_panel=_EFFORT,
        ),
    ] = None,
    greedy_tokens: Annotated[
        int,
        typer.Option(
            "--greedy-tokens",
            min=1,
            help="Length of greedy and seeded outputs.",
            rich_help_panel=_EFFORT,
        ),
    ] = 64,
    alpha: Annotated[
        float,
        typer.Option(
            "--alpha",
            min=1e-5,
            max=0.5,
            help="How likely an honest server is accused by the sampled part.",
            rich_help_panel=_EFFORT,
        ),
    ] = 0.01,
    copies: Annotated[
        int,
        typer.Option(
            "--copies",
            min=1,
            max=128,
            help="Samples in one request (n), or fewer where the server takes fewer.",
            rich_help_panel=_EFFORT,
        ),
    ] = 8,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", min=1, max=256, help="Requests at a time.", rich_help_panel=_EFFORT
        ),
    ] = 4,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, rich_help_panel=_SAMPLING)
    ] = 1.0,
    top_p: Annotated[float | None, typer.Option("--top-p", rich_help_panel=_SAMPLING)] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", rich_help_panel=_SAMPLING)] = None,
    min_p: Annotated[float | None, typer.Option("--min-p", rich_help_panel=_SAMPLING)] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME=JSON",
            help="Any other field of the request, such as presence_penalty=0.5 or "
            "'logit_bias={\"17\": -5}'. May be given several times.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", help="Which one.", rich_help_panel=_SPECULATION),
    ] = None,
    verification: Annotated[
        str | None,
        typer.Option(
            "--verification", help="matching, token or block.", rich_help_panel=_SPECULATION
        ),
    ] = None,
    max_lookahead: Annotated[
        int | None,
        typer.Option("--max-lookahead", min=1, help="Longest draft.", rich_help_panel=_SPECULATION),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Of the audit's own random numbers.", rich_help_panel=_EFFORT),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write everything that was found."),
    ] = None,
) -> None:
    """Test whether a server's output is the same with and without speculation.

    It asks over public HTTP only, both ways in turn, and compares:
    sampled: the distributions of the first tokens of many samples (G-test
    with exact Monte Carlo p-values, Holm's correction over prompts);
    greedy, and with a seed: the outputs, which must be equal.

    A pass says how small a shift would have been found. Against Outrider,
    speculation is switched per request; any other server needs --baseline.

    Exit codes: 0 no difference found, 1 it differs or the audit failed,
    2 misused, 3 inconclusive (such as when nothing was drafted).
    """
    if json_file is not None:
        check_writable(json_file)
    params = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    params |= dict(options.json_parameter(given) for given in param or [])
    speculation = {"drafter": drafter, "verification": verification, "max_lookahead": max_lookahead}
    plan = AuditPlan(
        url=url,
        prompts=BUILT_IN_PROMPTS if prompts is None else load_prompts(prompts),
        baseline=baseline,
        model=model,
        baseline_model=baseline_model,
        samples=samples,
        tokens=tokens,
        generate=tokens + 3 if generate is None else generate,
        greedy_tokens=greedy_tokens,
        params={name: value for name, value in params.items() if value is not None},
        speculation={name: value for name, value in speculation.items() if value is not None},
        copies=copies,
        concurrency=concurrency,
        alpha=alpha,
        timeout_s=timeout,
        api_key=api_key,
    )
    with progress_bars(MofNCompleteColumn(), TimeRemainingColumn()) as advance:
        report = asyncio.run(run_audit(plan, np.random.default_rng(seed), advance))
    render(report, Console(highlight=False))
    if json_file is not None:
        write_json(json_file, as_json(report))
    raise typer.Exit(_EXIT_CODES[report.verdict])
