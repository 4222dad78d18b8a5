"""How much faster is decoding with speculation? Plain and speculative, interleaved in one run.

For every prompt all modes are decoded one after the other, in an order that rotates from prompt to
prompt, so that whatever else the machine does hits them alike. Speeds are decode speeds,
(n - 1) / (t_last - t_first), prefill apart; the comparison is the geometric mean of the per-prompt
ratios to plain, with its 95% bootstrap interval, beside the aggregate.

    python scripts/speed.py PROMPTS.jsonl ... --drafters ngram,layers:10,self --report FILE.md
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import shlex
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress
from workload import Chat, Prompt, decode, decode_speed, read_prompts

from outrider.config import Settings, load_settings
from outrider.pipeline import Session, create_pipeline
from outrider.types import SamplingParams, VerificationMethod

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Run:
    prompt: Prompt
    mode: str
    session: Session

    @property
    def speed(self) -> float:
        return decode_speed(self.session) or math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("prompts", nargs="+", type=Path)
    parser.add_argument("--drafters", default="ngram")
    parser.add_argument(
        "--verifiers", default="", help="rules to compare, of matching,token,block; sampled only"
    )
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--lookahead", type=int, help="always so many, instead of the controller")
    parser.add_argument("--limit", type=int, help="prompts of each file, evenly spread")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    speculation = {"drafts": arguments.drafters}
    if arguments.lookahead:
        speculation |= {"controller": "fixed", "lookahead": arguments.lookahead}
    settings = load_settings(None, {"speculation": speculation})
    runs = asyncio.run(_measure(arguments, settings))
    text = _report(runs, arguments, settings)
    arguments.report.write_text(text)
    print(text)


async def _measure(arguments: argparse.Namespace, settings: Settings) -> list[Run]:
    prompts = read_prompts(arguments.prompts, arguments.limit)
    sampling = SamplingParams(
        temperature=arguments.temperature,
        max_tokens=arguments.max_tokens,
        seed=None if arguments.verifiers else 1,
    )
    pipeline = await create_pipeline(settings)
    chat = Chat(pipeline)
    verifiers = [f"/{name}" for name in arguments.verifiers.split(",") if name] or [""]
    modes = [PLAIN, *(name + rule for name in pipeline.drafter_names for rule in verifiers)]
    runs = []
    try:
        for mode in modes:  # the first run of each pays for memory that later ones find in place
            await _decode(pipeline, chat, prompts[0], sampling, mode)
        with Progress() as progress:
            task = progress.add_task("prompts", total=len(prompts))
            for number, prompt in enumerate(prompts):
                turn = number % len(modes)
                for mode in modes[turn:] + modes[:turn]:
                    session = await _decode(pipeline, chat, prompt, sampling, mode)
                    runs.append(Run(prompt, mode, session))
                progress.advance(task)
    finally:
        await pipeline.close()
    return runs


async def _decode(pipeline, chat, prompt, sampling, mode) -> Session:
    name, _, rule = mode.rpartition("/") if "/" in mode else (mode, "", "")
    return await decode(
        pipeline,
        chat.encode(prompt),
        sampling,
        None if mode == PLAIN else name,
        VerificationMethod(rule) if rule else None,
    )


def _report(runs: list[Run], arguments: argparse.Namespace, settings: Settings) -> str:
    sources = list(dict.fromkeys(run.prompt.source for run in runs))
    modes = list(dict.fromkeys(run.mode for run in sorted(runs, key=lambda run: run.mode != PLAIN)))
    lines = [
        "# Decode speed, plain and speculative",
        "",
        f"Model {settings.engine.target}, {settings.engine.dtype}, temperature "
        f"{arguments.temperature:g}, one stream, up to {arguments.max_tokens} new tokens, "
        + (
            f"always {arguments.lookahead} drafted."
            if arguments.lookahead
            else f"controller {settings.speculation.controller}."
        ),
        "Ratios are to plain decoding of the same prompt in the same run.",
        "",
        "| prompts | mode | prompts | tokens/s | ratio, geometric mean (95%) | median | accepted | "
        "tokens/round |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for source in sources:
        for mode in modes:
            lines.append(_row(source, mode, runs))
    command = [Path(word).name if word.endswith(".jsonl") else word for word in sys.argv]
    lines += ["", f"Command: `python {shlex.join(command)}`", ""]
    return "\n".join(lines)


def _row(source: str, mode: str, runs: list[Run]) -> str:
    of = lambda name: {  # noqa: E731 # a table of one mode, twice
        run.prompt.index: run for run in runs if (run.prompt.source, run.mode) == (source, name)
    }
    plain, ours = of(PLAIN), of(mode)
    ratios = [
        ours[index].speed / plain[index].speed
        for index in ours
        if not math.isnan(ours[index].speed / plain[index].speed)
    ]
    sessions = [run.session for run in ours.values()]
    tokens = sum(session.output_length - 1 for session in sessions)
    seconds = sum(session.last_token_at - session.first_token_at for session in sessions)
    drafted = sum(session.stats.drafted for session in sessions)
    accepted = sum(session.stats.accepted for session in sessions)
    rounds = sum(session.stats.rounds - 1 for session in sessions)
    low, high = _interval(ratios)
    ratio = f"{statistics.geometric_mean(ratios):.2f} ({low:.2f} to {high:.2f})"
    return (
        f"| {source} | {mode} | {len(ratios)} | {tokens / seconds:.1f} | "
        f"{'1' if mode == PLAIN else ratio} | {statistics.median(ratios):.2f} | "
        f"{f'{accepted / drafted:.0%}' if drafted else '-'} | {tokens / rounds:.2f} |"
    )


def _interval(ratios: list[float], resamples: int = 2000) -> tuple[float, float]:
    draw = random.Random(0)
    means = sorted(
        statistics.geometric_mean(draw.choices(ratios, k=len(ratios))) for _ in range(resamples)
    )
    return means[int(0.025 * resamples)], means[int(0.975 * resamples)]


if __name__ == "__main__":
    main()
