"""`outrider generate`: one answer in the terminal, each token coloured by where it came from."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli import options
from outrider.cli.console import LogLevel, load_pipeline, set_up_logs
from outrider.config import Settings
from outrider.pipeline import Pipeline, Session
from outrider.sampling import noise_key
from outrider.text import ChatTemplate, Tokenizer, create_tokenizer
from outrider.types import Origin, SamplingParams, TokenIds

__all__ = ["generate"]

_STYLES = {
    Origin.ACCEPTED: "green",
    Origin.RECOVERED: "yellow",
    Origin.BONUS: "cyan",
    Origin.PLAIN: "",
}
_WARM_UP_TOKENS = 4

_SAMPLING = "Sampling"


def generate(
    prompt: Annotated[
        str, typer.Argument(help="What to say to the model; - reads standard input.")
    ],
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode plainly as well; show both speeds.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, without a chat template.")
    ] = False,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", help="Output budget.", rich_help_panel=_SAMPLING)
    ] = 256,
    temperature: Annotated[
        float, typer.Option("--temperature", help="0 is greedy.", rich_help_panel=_SAMPLING)
    ] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", rich_help_panel=_SAMPLING)] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", rich_help_panel=_SAMPLING)] = 0,
    min_p: Annotated[float, typer.Option("--min-p", rich_help_panel=_SAMPLING)] = 0.0,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Fixes the output.", rich_help_panel=_SAMPLING)
    ] = None,
    config: options.Config = None,
    target: options.Target = None,
    draft: options.Draft = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    threads: options.Threads = None,
    max_context: options.MaxContext = None,
    kv_memory: options.KvMemory = None,
    controller: options.Controller = None,
    lookahead: options.Lookahead = None,
    max_lookahead: options.MaxLookahead = None,
) -> None:
    """Print the model's answer as it comes.

    Green tokens were drafted and accepted, yellow ones replace a rejected draft, cyan ones came
    free behind a draft accepted whole, uncoloured ones were decoded without a draft.
    """
    set_up_logs(LogLevel.WARNING)
    settings = options.build_settings(
        config,
        target=target,
        draft=draft,
        dtype=dtype,
        device=device,
        threads=threads,
        max_context=max_context,
        kv_memory=kv_memory,
        controller=controller,
        lookahead=lookahead,
        max_lookahead=max_lookahead,
    )
    sampling = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        max_tokens=max_tokens,
    )
    text = sys.stdin.read() if prompt == "-" else prompt
    asyncio.run(_generate(settings, text, sampling, raw=raw, compare=compare))


async def _generate(
    settings: Settings, text: str, sampling: SamplingParams, *, raw: bool, compare: bool
) -> None:
    pipeline = await load_pipeline(settings)
    try:
        tokenizer = create_tokenizer(pipeline.info)
        prompt_ids = _encode(pipeline, tokenizer, text, raw=raw)
        key = noise_key(sampling.seed)
        if compare:
            await _warm_up(pipeline, prompt_ids)
        speculative = pipeline.session(prompt_ids, sampling, key=key)
        await _print(pipeline, tokenizer, speculative)
        runs = [_Run("speculative", speculative)]
        if compare:
            plain = pipeline.session(prompt_ids, sampling, key=key, enabled=False)
            async for _ in pipeline.run(plain):
                pass
            runs.append(_Run("plain", plain))
        _report(runs)
    finally:
        await pipeline.close()


def _encode(pipeline: Pipeline, tokenizer: Tokenizer, text: str, *, raw: bool) -> TokenIds:
    template = ChatTemplate(pipeline.info.chat_template, pipeline.info.special_tokens)
    if raw or not template.available:
        return tuple(tokenizer.encode(text, add_special_tokens=True))
    rendered = template.render([{"role": "user", "content": text}])
    return tuple(tokenizer.encode(rendered, add_special_tokens=False))


async def _warm_up(pipeline: Pipeline, prompt_ids: TokenIds) -> None:
    """The first run in a process pays for memory that later ones find in place."""
    sampling = SamplingParams(temperature=0.0, max_tokens=_WARM_UP_TOKENS)
    async for _ in pipeline.run(pipeline.session(prompt_ids, sampling)):
        pass


async def _print(pipeline: Pipeline, tokenizer: Tokenizer, session: Session) -> None:
    console = Console(highlight=False, soft_wrap=True)
    detokenizer = tokenizer.detokenizer(prompt_ids=session.opening.prompt_ids)
    style = ""
    async for step in pipeline.run(session):
        for token_id, origin in zip(step.token_ids, step.origins, strict=True):
            style = _STYLES[origin]
            console.print(Text(detokenizer.push(token_id), style=style), end="")
    console.print(Text(detokenizer.flush(), style=style))


@dataclass(frozen=True, slots=True)
class _Run:
    name: str
    session: Session

    @property
    def seconds_to_first(self) -> float:
        return (self.session.first_token_at or 0.0) - self.session.started_at

    @property
    def tokens_per_s(self) -> float | None:
        """Decode speed: (n - 1) / (t_last - t_first); None for a single token."""
        session = self.session
        if session.output_length < 2 or not session.first_token_at or not session.last_token_at:
            return None
        return (session.output_length - 1) / (session.last_token_at - session.first_token_at)


def _report(runs: list[_Run]) -> None:
    table = Table("", "tokens", "first token", "tokens/s", "accepted", "tokens/round", box=None)
    for run in runs:
        stats = run.session.stats
        table.add_row(
            run.name,
            str(run.session.output_length),
            f"{run.seconds_to_first:.2f} s",
            "-" if run.tokens_per_s is None else f"{run.tokens_per_s:.1f}",
            f"{stats.accepted}/{stats.drafted}" if stats.drafted else "-",
            f"{run.session.output_length / stats.rounds:.2f}",
        )
    console = Console(stderr=True, highlight=False)
    console.print(table)
    method, exact, reason = runs[0].session.verification()
    console.print(f"verified by {method}; exact: {exact}{f' ({reason})' if reason else ''}")
    if len(runs) > 1:
        _report_comparison(console, *runs)


def _report_comparison(console: Console, speculative: _Run, plain: _Run) -> None:
    if not speculative.session.stats.accepted:
        console.print("speed-up: none, since no drafted token was accepted")
    elif speculative.tokens_per_s and plain.tokens_per_s:
        console.print(f"speed-up: {speculative.tokens_per_s / plain.tokens_per_s:.2f}x")
    ours, theirs = speculative.session.output_ids, plain.session.output_ids
    if ours == theirs:
        console.print("outputs: identical")
        return
    same = next(
        (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
        min(len(ours), len(theirs)),
    )
    console.print(f"outputs: differ from token {same} on")
