"""Is greedy output the same with and without speculation, token for token?

For every prompt: decode plainly and alone, then with each drafter alone, then with each drafter
among `--concurrency` requests at once, and compare token ids. Where they differ, the model's two
best logits at the first difference are compared: within 1e-4 of each other, floating-point rounding
decides between them, and the difference is counted apart.

    python scripts/lossless.py PROMPTS.jsonl ... --drafters ngram,layers:10,self --report FILE.md

Progress is kept in the report's `.jsonl` sibling: run again to go on after an interruption.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from rich.progress import Progress

from outrider.bench import Encoder, Prompt, decode, read_prompts
from outrider.config import Settings, load_settings
from outrider.engine import Chunk, load_decoder
from outrider.models import resolve
from outrider.pipeline import Pipeline, create_pipeline
from outrider.types import SamplingParams, TokenIds

NEAR = 1e-4
Outputs = dict[str, list[TokenIds]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("prompts", nargs="+", type=Path)
    parser.add_argument("--drafters", default="ngram,layers:10,self")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--limit", type=int, help="prompts of each file, evenly spread")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    # A deadline would only turn drafts that are to be judged here into none.
    speculation = {"drafts": arguments.drafters, "deadline_ms": 60_000}
    settings = load_settings(None, {"speculation": speculation})
    rows = asyncio.run(_check(arguments, settings))
    text = _report(rows, settings)
    arguments.report.write_text(text)
    print(text)
    sys.exit(any(row["verdict"] == "different" for row in rows))


async def _check(arguments: argparse.Namespace, settings: Settings) -> list[dict]:
    prompts = read_prompts(arguments.prompts, arguments.limit)
    kept = arguments.report.with_suffix(".jsonl")
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(row["source"], row["index"]) for row in rows}
    prompts = [prompt for prompt in prompts if (prompt.source, prompt.index) not in done]
    sampling = SamplingParams(temperature=0.0, max_tokens=arguments.max_tokens)
    pipeline = await create_pipeline(settings)
    encoder = Encoder(pipeline)
    judge = _Judge(settings)
    try:
        with Progress() as progress, kept.open("a") as log:
            task = progress.add_task("prompts", total=len(prompts))
            for start in range(0, len(prompts), arguments.concurrency):
                group = prompts[start : start + arguments.concurrency]
                ids = [encoder.encode(prompt.question()) for prompt in group]
                outputs = await _decode_all(pipeline, ids, sampling)
                for row in judge.compare(group, ids, outputs):
                    rows.append(row)
                    log.write(json.dumps(row) + "\n")
                log.flush()
                progress.advance(task, len(group))
    finally:
        await pipeline.close()
    return rows


async def _decode_all(pipeline: Pipeline, ids: list[TokenIds], sampling: SamplingParams) -> Outputs:
    outputs: Outputs = {}

    async def one(prompt_ids: TokenIds, drafter: str | None) -> TokenIds:
        session = pipeline.session(
            prompt_ids, sampling, enabled=drafter is not None, drafter=drafter
        )
        await decode(pipeline, session, time.perf_counter)
        return session.output_ids

    outputs["plain"] = [await one(prompt_ids, None) for prompt_ids in ids]
    for drafter in pipeline.drafter_names:
        outputs[f"{drafter}, alone"] = [await one(prompt_ids, drafter) for prompt_ids in ids]
        together = await asyncio.gather(*(one(prompt_ids, drafter) for prompt_ids in ids))
        outputs[f"{drafter}, together"] = list(together)
    return outputs


class _Judge:
    """Compares outputs, and looks at the logits where they differ."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._decoder = None

    def compare(self, group: list[Prompt], ids: list[TokenIds], outputs: Outputs) -> list[dict]:
        plain = outputs.pop("plain")
        rows = []
        for mode, found in outputs.items():
            for prompt, prompt_ids, one, other in zip(group, ids, plain, found, strict=True):
                row = {"source": prompt.source, "index": prompt.index, "mode": mode}
                row |= {"tokens": len(one), "verdict": "identical"}
                if one != other:
                    row |= self._difference(prompt_ids, one, other)
                rows.append(row)
        return rows

    def _difference(self, prompt_ids: TokenIds, one: TokenIds, other: TokenIds) -> dict:
        shared = 0
        while shared < min(len(one), len(other)) and one[shared] == other[shared]:
            shared += 1
        gap = self._gap([*prompt_ids, *one[:shared]])
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


def _report(rows: list[dict], settings: Settings) -> str:
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    sources = list(dict.fromkeys(row["source"] for row in rows))
    lines = [
        "# Greedy output with and without speculation",
        "",
        f"Model {settings.engine.target}, {settings.engine.dtype}. Every mode is compared with",
        "plain decoding of the same prompt alone, token id by token id. *together*: among as many",
        "requests at once as the command says. *rounding*: the first difference is at a position",
        f"where the two best logits lie within {NEAR:g} of each other.",
        "",
        "| prompts | drafter | outputs | tokens compared | identical | rounding | different |",
        "|---|---|---|---|---|---|---|",
    ]
    for source in sources:
        for mode in modes:
            picked = [row for row in rows if (row["source"], row["mode"]) == (source, mode)]
            count = Counter(row["verdict"] for row in picked)
            tokens = sum(row["tokens"] for row in picked)
            lines.append(
                f"| {source} | {mode} | {len(picked)} | {tokens} | {count['identical']} | "
                f"{count['rounding']} | {count['different']} |"
            )
    excused = [row for row in rows if row["verdict"] != "identical"]
    if excused:
        lines += ["", "Differences:", ""]
        lines += [
            f"- {row['source']} {row['index']}, {row['mode']}: token {row['position']}, "
            f"gap {row['gap']:.1e} ({row['verdict']})"
            for row in excused
        ]
    command = [Path(word).name if word.endswith(".jsonl") else word for word in sys.argv]
    lines += ["", f"Command: `python {shlex.join(command)}`", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
