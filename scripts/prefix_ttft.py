"""How long does the first token take if the prompt's beginning is known, against a prompt of new
tokens alone?

Every round sends two prompts of the same length, in an order that alternates: one begins as all of
its kind do and ends with tokens of its own (warm), one comes from a tenant of its own, with whom
nothing is shared (cold). Times are those from the start of the session to its first token; the
comparison is the median of the ratios within a round.

    python scripts/prefix_ttft.py --target MODEL --report FILE.md
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shlex
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from outrider.config import Settings, load_settings
from outrider.pipeline import Pipeline, create_pipeline
from outrider.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds to the first token, and tokens that were reused."""

    cold_s: float
    warm_s: float
    reused: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--target", help="model; the default is the one configured")
    parser.add_argument("--dtype", help="number format; the default is the one configured")
    parser.add_argument("--prefix", type=int, default=1000, help="tokens that are shared")
    parser.add_argument("--suffix", type=int, default=50, help="tokens of each prompt's own")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    engine = {"target": arguments.target, "dtype": arguments.dtype, "max_sessions": 4}
    settings = load_settings(None, {"engine": engine, "speculation": {"drafts": "none"}})
    rounds = asyncio.run(_measure(arguments, settings))
    text = _report(rounds, arguments, settings)
    arguments.report.write_text(text)
    print(text)


async def _measure(arguments: argparse.Namespace, settings: Settings) -> list[Round]:
    pipeline = await create_pipeline(settings)
    draw = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(pipeline.info.vocab_size) for _ in range(count))

    shared = tokens(arguments.prefix)
    rounds: list[Round] = []
    try:
        # The first of each kind pays for memory that later ones find in place, and is the one that
        # the others begin as.
        await _first_token(pipeline, (*shared, *tokens(arguments.suffix)), "warm")
        await _first_token(pipeline, (*shared, *tokens(arguments.suffix)), "warm")
        with Progress() as progress:
            for turn in progress.track(range(arguments.rounds), description="rounds"):
                taken: dict[str, tuple[float, int]] = {}
                kinds = ["warm", f"cold {turn}"]
                for tenant in kinds if turn % 2 else reversed(kinds):
                    prompt = (*shared, *tokens(arguments.suffix))
                    taken[tenant] = await _first_token(pipeline, prompt, tenant)
                warm_s, reused = taken["warm"]
                cold_s, nothing = taken[f"cold {turn}"]
                assert nothing == 0 < reused  # noqa: S101 # else it is not what is to be measured
                rounds.append(Round(cold_s, warm_s, reused))
    finally:
        await pipeline.close()
    return rounds


async def _first_token(
    pipeline: Pipeline, prompt_ids: tuple[int, ...], tenant: str
) -> tuple[float, int]:
    sampling = SamplingParams(temperature=0.0, max_tokens=1)
    session = pipeline.session(prompt_ids, sampling, tenant=tenant)
    async for _ in pipeline.run(session):
        pass
    assert session.first_token_at is not None  # noqa: S101 # it has ended
    return session.first_token_at - session.started_at, session.cached_tokens


def _report(rounds: list[Round], arguments: argparse.Namespace, settings: Settings) -> str:
    ratios = sorted(each.warm_s / each.cold_s for each in rounds)
    lines = [
        "# Time to the first token behind a known beginning",
        "",
        f"Model {settings.engine.target}, {settings.engine.dtype}. Prompts of"
        f" {arguments.prefix + arguments.suffix} tokens, of which the first {arguments.prefix}",
        "are known to the server (warm) or not (cold), interleaved.",
        "",
        "| round | cold, ms | warm, ms | warm / cold | tokens reused |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {number} | {each.cold_s * 1000:.0f} | {each.warm_s * 1000:.0f} |"
        f" {each.warm_s / each.cold_s:.3f} | {each.reused} |"
        for number, each in enumerate(rounds, start=1)
    ]
    lines += [
        "",
        f"Median ratio {statistics.median(ratios):.3f}"
        f" (between {ratios[0]:.3f} and {ratios[-1]:.3f}).",
        "",
        f"Command: `python {shlex.join(sys.argv)}`",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
