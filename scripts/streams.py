"""How many tokens per second do several plain streams get together, against one alone?

The prompts are taken in groups. Each group is decoded plainly, first one prompt after the other
and then all at once, or the other way round in every second group, so that whatever else the
machine does hits both alike. Nothing is reused between the two. Speed is tokens per second while
all streams decode: from the last stream's first token to the first stream's last one, prefill
apart.

    python scripts/streams.py PROMPTS.jsonl --target MODEL --report FILE.md
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import statistics
import sys
import time
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from outrider.bench import Encoder, read_prompts
from outrider.config import Settings, load_settings
from outrider.pipeline import Pipeline, create_pipeline
from outrider.types import SamplingParams, TokenIds


@dataclass(frozen=True, slots=True)
class Group:
    """Tokens per second of one group of prompts."""

    alone: float
    together: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("prompts", nargs="+", type=Path)
    parser.add_argument("--target", help="model; the default is the one configured")
    parser.add_argument("--dtype", help="number format; the default is the one configured")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--groups", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    engine = {"target": arguments.target, "dtype": arguments.dtype}
    settings = load_settings(None, {"engine": engine, "speculation": {"drafts": "none"}})
    groups = asyncio.run(_measure(arguments, settings))
    text = _report(groups, arguments, settings)
    arguments.report.write_text(text)
    print(text)


async def _measure(arguments: argparse.Namespace, settings: Settings) -> list[Group]:
    streams = arguments.streams
    prompts = read_prompts(arguments.prompts)[: streams * arguments.groups]
    pipeline = await create_pipeline(settings)
    encoder = Encoder(pipeline)
    ids = [encoder.encode(prompt.question()) for prompt in prompts]
    tenants = iter(range(sys.maxsize))  # one for each run, so that nothing is reused

    async def decode(prompt_ids: TokenIds, max_tokens: int) -> list[float]:
        return await _token_times(pipeline, prompt_ids, max_tokens, str(next(tenants)))

    async def alone(group: list[TokenIds]) -> float:
        runs = [await decode(prompt_ids, arguments.max_tokens) for prompt_ids in group]
        return sum(len(run) - 1 for run in runs) / sum(run[-1] - run[0] for run in runs)

    async def together(group: list[TokenIds]) -> float:
        runs = await asyncio.gather(
            # Those that begin to decode first go on until the last has begun, and then as long.
            *(decode(prompt_ids, 4 * arguments.max_tokens) for prompt_ids in group)
        )
        start, end = max(run[0] for run in runs), min(run[-1] for run in runs)
        return sum(start < moment <= end for run in runs for moment in run) / (end - start)

    groups = []
    try:
        await alone(ids[:1])  # it pays for memory that later ones find in place
        with Progress() as progress:
            starts = range(0, len(ids) - streams + 1, streams)
            for turn, start in enumerate(progress.track(starts, description="groups")):
                group = ids[start : start + streams]
                if turn % 2:
                    many = await together(group)
                    groups.append(Group(await alone(group), many))
                else:
                    groups.append(Group(await alone(group), await together(group)))
    finally:
        await pipeline.close()
    return groups


async def _token_times(
    pipeline: Pipeline, prompt_ids: TokenIds, max_tokens: int, tenant: str
) -> list[float]:
    """When each token of a greedy output of exactly so many came."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    session = pipeline.session(prompt_ids, sampling, tenant=tenant)
    times: list[float] = []
    async with aclosing(pipeline.run(session)) as steps:
        async for step in steps:
            times += [time.perf_counter()] * len(step.token_ids)
    return times


def _report(groups: list[Group], arguments: argparse.Namespace, settings: Settings) -> str:
    ratios = [each.together / each.alone for each in groups]
    lines = [
        f"# {arguments.streams} plain streams against one",
        "",
        f"Model {settings.engine.target}, {settings.engine.dtype}, greedy, nothing drafted.",
        f"Groups of {arguments.streams} prompts, decoded one by one and all at once; tokens per",
        "second of all streams together while all decode.",
        "",
        f"| group | one stream | {arguments.streams} streams | ratio |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {number} | {each.alone:.1f} | {each.together:.1f} | {each.together / each.alone:.2f} |"
        for number, each in enumerate(groups, start=1)
    ]
    command = [Path(word).name if word.endswith(".jsonl") else word for word in sys.argv]
    lines += [
        "",
        f"Median ratio {statistics.median(ratios):.2f}"
        f" (between {min(ratios):.2f} and {max(ratios):.2f}).",
        "",
        f"Command: `python {shlex.join(command)}`",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
