"""Is everything given back, whatever becomes of a session? Thousands of short ones, many cancelled.

Sessions of several tenants, with shared beginnings, drafted for or not, run over a random model on
the real engine, within a memory so tight that what is kept must be dropped all the time. Many are
cancelled at random moments. Memory of the process is noted along the way; at the end nothing may be
held but what is kept for reuse, within its budget.

    python scripts/soak.py --sessions 10000 --report docs/results/soak.md
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.progress import Progress

from outrider.config import load_settings
from outrider.drafters import NgramDrafter
from outrider.drafters.model import ModelDrafter
from outrider.engine import Decoder, EngineThread, KVCache, Lane, load_model
from outrider.metrics import Metrics
from outrider.pipeline import Pipeline
from outrider.targets.local import LocalTarget
from outrider.types import DrafterInfo, SamplingParams, TargetInfo

SLOTS = 16
KV_TOKENS = 4000
MARKS = 40
"""Readings of the process's memory."""

MiB = 1024**2


@dataclass
class Soak:
    """What came of it.

    Attributes:
        ends: sessions by how they ended.
        reused: prompt tokens taken from earlier sessions.
        rss: resident memory in bytes, evenly spread over the run.
        seconds: that it took.
        faults: what was not given back; empty if all was.
    """

    ends: Counter[str] = field(default_factory=Counter)
    reused: int = 0
    rss: list[int] = field(default_factory=list)
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Median memory of the last quarter over that of the second."""
        quarter = max(len(self.rss) // 4, 1)
        before = statistics.median(self.rss[quarter : 2 * quarter] or self.rss)
        return statistics.median(self.rss[-quarter:]) / before


async def soak(decoder: Decoder, sessions: int, *, seed: int = 0) -> Soak:
    """Run so many sessions over `decoder`, as many at a time as there are slots."""
    vocab_size = decoder.config.vocab_size
    engine = EngineThread(threads=1)
    lanes = [_lane(engine, decoder), _lane(engine, decoder.truncated(1))]
    target = LocalTarget(lanes[0], _info(decoder))
    half = DrafterInfo("half", deterministic=False, declares=True, context_length=256)
    drafters = {
        "ngram": (NgramDrafter(), DrafterInfo("ngram")),
        "half": (
            ModelDrafter(lanes[1], half, vocab_size=vocab_size, eos_token_ids=frozenset({0})),
            half,
        ),
    }
    pipeline = Pipeline(target, _info(decoder), drafters, load_settings(), Metrics())
    draw = random.Random(seed)
    stems = [[draw.randrange(vocab_size) for _ in range(64)] for _ in range(6)]
    result = Soak()
    left = iter(range(sessions))
    started = time.perf_counter()
    try:
        with Progress(disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task("sessions", total=sessions)

            async def work() -> None:
                for number in left:
                    await _one(pipeline, draw, stems, result)
                    progress.advance(task)
                    if number % max(sessions // MARKS, 1) == 0:
                        result.rss.append(_resident())

            await asyncio.gather(*(work() for _ in range(SLOTS)))
        await engine.call(lambda: None)  # what was posted before is done
        result.seconds = time.perf_counter() - started
        for name, lane in zip(("target", "draft model"), lanes, strict=True):
            result.faults += [f"{name}: {fault}" for fault in _leftovers(lane.cache)]
    finally:
        await pipeline.close()
    for name, lane in zip(("target", "draft model"), lanes, strict=True):
        if lane.cache.bytes_in_use or lane.cache.bytes_retained:
            result.faults.append(f"{name}: memory held after closing")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        decoder = _random_model(Path(folder))
    result = asyncio.run(soak(decoder, arguments.sessions, seed=arguments.seed))
    text = _report(result)
    arguments.report.write_text(text)
    print(text)
    sys.exit(bool(result.faults) or result.growth > 1.05)


async def _one(
    pipeline: Pipeline, draw: random.Random, stems: list[list[int]], result: Soak
) -> None:
    """One session, let run to its end or cancelled anywhere."""
    prompt = draw.choice(stems)[: draw.randrange(8, 65)]
    prompt += [draw.choice(prompt) for _ in range(draw.randrange(1, 33))]
    session = pipeline.session(
        tuple(prompt),
        SamplingParams(
            temperature=draw.choice([0.0, 1.0]),
            max_tokens=draw.randrange(1, 25),
            seed=draw.choice([None, 1]),
        ),
        tenant=draw.choice(["one", "two", "three"]),
        drafter=draw.choice(["ngram", "half"]),
        max_lookahead=draw.choice([0, None]),
    )

    async def run() -> None:
        async with aclosing(pipeline.run(session)) as steps:
            async for _ in steps:
                pass

    task = asyncio.create_task(run())
    cancels = draw.random() < 0.4
    await asyncio.wait([task], timeout=draw.expovariate(30.0) if cancels else None)
    task.cancel()
    await asyncio.wait([task])
    result.reused += session.cached_tokens
    if task.cancelled():
        result.ends["cancelled"] += 1
    elif (error := task.exception()) is not None:
        result.ends[type(error).__name__] += 1
        result.faults.append(f"{type(error).__name__}: {error}")
    else:
        result.ends["finished"] += 1


def _leftovers(cache: KVCache) -> list[str]:
    faults = []
    if cache.num_free != SLOTS:
        faults.append(f"{SLOTS - cache.num_free} slots are lost")
    if cache.bytes_in_use:
        faults.append(f"{cache.bytes_in_use} bytes are held by nobody")
    if cache.bytes_retained > KV_TOKENS * cache.bytes_per_token:
        faults.append(f"{cache.bytes_retained} bytes are kept, over the budget")
    try:
        cache.free(cache.allocate(KV_TOKENS if cache.max_length >= KV_TOKENS else None))
    except Exception as error:  # whatever it is, it is what is looked for
        faults.append(f"room is still promised: {error}")
    return faults


def _lane(engine: EngineThread, decoder: Decoder) -> Lane:
    return Lane(
        engine, decoder, num_slots=SLOTS, max_length=256, step_tokens=64, kv_tokens=KV_TOKENS
    )


def _info(decoder: Decoder) -> TargetInfo:
    return TargetInfo(
        model_id="random",
        model_hash="random",
        vocab_size=decoder.config.vocab_size,
        vocab_fingerprint="random",
        eos_token_ids=frozenset({0}),
        context_length=256,
    )


def _random_model(folder: Path) -> Decoder:
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 # takes seconds

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return load_model(folder, dtype=torch.float32, device=torch.device("cpu"))


def _resident() -> int:
    """Bytes of this process in memory, by Linux."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _report(result: Soak) -> str:
    lines = [
        "# Soak",
        "",
        f"{result.ends.total()} sessions, {SLOTS} at a time, over a random model of 2 layers with",
        f"a draft model and prompt lookup, in {result.seconds:.0f} s. Three tenants, shared",
        f"beginnings, room for {KV_TOKENS} tokens in each cache. Sessions were cancelled at random",
        "moments.",
        "",
        "| ended as | sessions |",
        "|---|---|",
        *(f"| {end} | {count} |" for end, count in sorted(result.ends.items())),
        "",
        f"Prompt tokens taken from earlier sessions: {result.reused}.",
        "",
        "Resident memory in MiB, evenly spread over the run:",
        ", ".join(f"{rss / MiB:.0f}" for rss in result.rss) + ".",
        f"The median of the last quarter is {result.growth:.3f} times that of the second.",
        "",
        "Not given back at the end: " + ("; ".join(result.faults) or "nothing") + ".",
        "",
        f"Command: `python {shlex.join(sys.argv)}`",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
