"""Is output the same with and without speculation, alone and among others, token for token?

Plain decoding of every prompt alone, greedy and with a seed, is the reference. Against its token
ids are held: each drafter with each fixed lookahead k, alone and among `--concurrency` requests at
once; and plain decoding among as many (k = 0). Alone, the prompt's keys and values are taken over
from the reference; among others, the longest drafts come first and read it anew.

On a batch-invariant target every difference is a fault. On others only greedy outputs are compared,
and where they differ, the model's two best logits at the first difference are, too: within 1e-4 of
each other, floating-point rounding decides between them, and the difference is counted apart.

    python scripts/lossless.py PROMPTS.jsonl ... --lookaheads 0,4,8,16 --report FILE.md

Progress is kept in the report's `.jsonl` sibling: run again to go on after an interruption.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import Progress

from outrider.bench import Encoder, Prompt, decode, read_prompts
from outrider.config import Settings, load_settings
from outrider.engine import Chunk, load_decoder
from outrider.models import resolve
from outrider.pipeline import Pipeline, Session, create_pipeline
from outrider.types import SamplingParams, TargetInfo, TokenIds

NEAR = 1e-4


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how its output is sampled."""

    prompt: Prompt
    ids: TokenIds
    sampling: SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("prompts", nargs="+", type=Path)
    parser.add_argument("--target", help="model; the default is the one configured")
    parser.add_argument("--dtype", help="number format; the default is the one configured")
    parser.add_argument("--drafters", default="ngram")
    parser.add_argument("--lookaheads", default="0,4,8,16", help="tokens drafted in every round")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--limit", type=int, help="prompts of each file, evenly spread")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    lookaheads = {int(word) for word in arguments.lookaheads.split(",")}
    arguments.lookaheads = sorted(lookaheads, reverse=True)
    most = arguments.lookaheads[0]
    speculation = {"controller": "fixed", "lookahead": most, "max_lookahead": most}
    # A deadline would only turn drafts that are to be judged here into none.
    speculation |= {"drafts": arguments.drafters, "deadline_ms": 60_000}
    engine = {"target": arguments.target, "dtype": arguments.dtype}
    settings = load_settings(None, {"engine": engine, "speculation": speculation})
    rows, info = asyncio.run(_check(arguments, settings))
    text = _report(rows, info, arguments)
    arguments.report.write_text(text)
    print(text)
    sys.exit(any(row["verdict"] == "different" for row in rows))


async def _check(
    arguments: argparse.Namespace, settings: Settings
) -> tuple[list[dict], TargetInfo]:
    every = read_prompts(arguments.prompts, arguments.limit)
    kept = arguments.report.with_suffix(".jsonl")
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(row["source"], row["index"]) for row in rows}
    prompts = [prompt for prompt in every if (prompt.source, prompt.index) not in done]
    pipeline = await create_pipeline(settings)
    encoder = Encoder(pipeline)
    judge = _Judge(settings, pipeline.info)
    samplings = {"greedy": {"temperature": 0.0}, "seeded": {"temperature": 1.0, "top_p": 0.95}}
    if not judge.strict:
        del samplings["seeded"]  # nothing here could tell rounding from a fault
    try:
        with Progress() as progress, kept.open("a") as log:
            task = progress.add_task("prompts", total=len(prompts))
            for start in range(0, len(prompts), arguments.concurrency):
                group = prompts[start : start + arguments.concurrency]
                company = every[: arguments.concurrency - len(group)]  # of the last group
                found = []
                for name, fields in samplings.items():
                    requests = [
                        Request(
                            prompt,
                            encoder.encode(prompt.question()),
                            SamplingParams(
                                **fields, seed=prompt.index, max_tokens=arguments.max_tokens
                            ),
                        )
                        for prompt in [*group, *company]
                    ]
                    found += await _compare(
                        pipeline, judge, name, arguments.lookaheads, requests, len(group)
                    )
                rows += found
                log.write("".join(json.dumps(row) + "\n" for row in found))
                log.flush()
                progress.advance(task, len(group))
    finally:
        await pipeline.close()
    return rows, pipeline.info


async def _compare(
    pipeline: Pipeline,
    judge: _Judge,
    sampling: str,
    lookaheads: list[int],
    requests: list[Request],
    count: int,
) -> list[dict]:
    """A row per mode for each of the first `count` requests; the others keep them company."""

    async def one(request: Request, drafter: str | None, lookahead: int, tenant: str) -> Session:
        session = pipeline.session(
            request.ids,
            request.sampling,
            drafter=drafter,
            max_lookahead=lookahead,
            tenant=tenant,  # keys and values are reused within one alone
        )
        await decode(pipeline, session, time.perf_counter)
        return session

    rows = []
    plain = [await one(request, None, 0, "alone") for request in requests[:count]]
    modes: list[tuple[str | None, int]]
    modes = [(drafter, k) for drafter in pipeline.drafter_names for k in lookaheads if k]
    for drafter, lookahead in [*modes, (None, 0)] if 0 in lookaheads else modes:
        mode = f"{sampling}, {drafter} k = {lookahead}" if drafter else f"{sampling}, plain"
        found = {}
        if drafter:
            found["alone"] = [
                await one(request, drafter, lookahead, "alone") for request in requests[:count]
            ]
        found["together"] = await asyncio.gather(
            *(one(request, drafter, lookahead, "together") for request in requests)
        )
        for company, sessions in found.items():
            for request, reference, session in zip(requests, plain, sessions, strict=False):
                row = {"source": request.prompt.source, "index": request.prompt.index}
                row |= {"mode": f"{mode}, {company}", "tokens": len(reference.output_ids)}
                row |= {"accepted": session.stats.accepted, "drafted": session.stats.drafted}
                row |= {"failures": session.stats.failures}
                rows.append(row | judge.compare(request, reference, session))
    return rows


class _Judge:
    """Compares outputs, and looks at the logits where rounding may have decided."""

    def __init__(self, settings: Settings, info: TargetInfo) -> None:
        self.strict = info.capabilities.batch_invariant
        self._settings = settings
        self._decoder = None

    def compare(self, request: Request, reference: Session, session: Session) -> dict:
        one, other = reference.output_ids, session.output_ids
        if (one, reference.finish_reason) == (other, session.finish_reason):
            return {"verdict": "identical"}
        shared = 0
        while shared < min(len(one), len(other)) and one[shared] == other[shared]:
            shared += 1
        if self.strict:
            return {"verdict": "different", "position": shared}
        gap = self._gap([*request.ids, *one[:shared]])
        verdict = "rounding" if gap <= NEAR else "different"
        return {"verdict": verdict, "position": shared, "gap": gap}

    def _gap(self, tokens: list[int]) -> float:
        """Distance between the two best logits behind `tokens`."""
        if self._decoder is None:
            engine = self._settings.engine
            folder = resolve(engine.target, home=self._settings.home, dtype=engine.dtype)
            self._decoder = load_decoder(folder.path, engine, dtype=folder.dtype)
        cache = self._decoder.new_cache(num_slots=1, max_length=len(tokens))
        (logits,) = self._decoder.forward([Chunk(cache.allocate(), tokens, 1)], cache)
        best, second = torch.topk(logits[0], 2).values.tolist()
        return best - second


def _report(rows: list[dict], info: TargetInfo, arguments: argparse.Namespace) -> str:
    verdicts = ["identical", "different"]
    rule = "The target is batch-invariant: no difference is excused."
    if not info.capabilities.batch_invariant:
        verdicts.insert(1, "rounding")
        rule = f"*rounding*: at the first difference the two best logits lie within {NEAR:g}."
    lines = [
        "# Output with and without speculation",
        "",
        f"Model {info.model_id}, {info.dtype}, at most {arguments.max_tokens} tokens. Outputs are",
        "compared with plain decoding of the same prompt alone, token id by token id. *k*: tokens",
        "drafted in a round, as far as the drafter finds any. *alone*: behind the reference's keys",
        f"and values of the prompt. *together*: {arguments.concurrency} requests at once, prompts",
        f"read anew by the first of these modes at least. {rule}",
        f"Drafts that failed: {sum(row['failures'] for row in rows)}.",
        "",
        f"| prompts | mode | outputs | tokens | accepted of drafted | {' | '.join(verdicts)} |",
        "|---" * (5 + len(verdicts)) + "|",
    ]
    by_mode: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        by_mode.setdefault((row["source"], row["mode"]), []).append(row)
    # Each set's modes follow one another, in the order in which they were run.
    for (source, mode), picked in sorted(by_mode.items(), key=lambda item: item[0][0]):
        tokens, accepted, drafted = (
            sum(row[name] for row in picked) for name in ("tokens", "accepted", "drafted")
        )
        counts = [sum(row["verdict"] == verdict for row in picked) for verdict in verdicts]
        cells = [source, mode, len(picked), tokens, f"{accepted} of {drafted}", *counts]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    differences = [row for row in rows if row["verdict"] != "identical"]
    if differences:
        lines += ["", "Differences:", ""]
        for row in differences:
            where = f"{row['source']} {row['index']}, {row['mode']}: token {row['position']}"
            gap = f", gap {row['gap']:.1e}" if "gap" in row else ""
            lines.append(f"- {where}{gap} ({row['verdict']})")
    files = (".jsonl", ".gguf")
    command = [Path(word).name if word.endswith(files) else word for word in sys.argv]
    lines += ["", f"Command: `python {shlex.join(command)}`", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
