"""What does a forward pass over n new tokens cost, against one over a single token?

Speculation pays where this curve is flat. Every kind of weights, and llama.cpp if its `llama-bench`
is given, takes its turn in every round, and so does plain reading of memory, which bounds a pass
over one token: so whatever else the machine does hits all alike.

    python scripts/step_cost.py --report FILE.md --model MODEL [--dtypes int8,int4,float32]
        [--llama-bench BINARY]
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from outrider.config import load_settings
from outrider.engine import Chunk, Decoder, load_decoder
from outrider.models import resolve

ROWS = (1, 2, 4, 8, 16, 32)
_PAUSE_S = 0.05
"""Between arms: threads of the one before may spin for a while, waiting for more."""
Times = dict[int, list[float]]
"""New tokens to seconds of each round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default=load_settings().engine.target)
    parser.add_argument("--dtypes", default="int4,int8", help="separated by commas")
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's; needs --model GGUF")
    parser.add_argument("--context", type=int, default=256, help="tokens behind which to step")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()

    settings = load_settings()
    threads = settings.engine.threads or torch.get_num_threads()
    arms: dict[str, Callable[[], dict[int, float]]] = {}
    weights: dict[str, int] = {}
    for dtype in arguments.dtypes.split(","):
        folder = resolve(arguments.model, home=settings.home, dtype=dtype)
        decoder = load_decoder(folder.path, settings.engine, dtype=dtype)
        arms[dtype] = _stepper(decoder, arguments.context)
        weights[dtype] = getattr(decoder, "weight_bytes", 0)
    if arguments.llama_bench:
        arms["llama.cpp"] = _llama(
            arguments.llama_bench, arguments.model, arguments.context, threads
        )
    read, times = _measure(arms, arguments.rounds)
    text = _report(arguments, threads, read, times, weights)
    arguments.report.write_text(text)
    print(text)


def _measure(
    arms: dict[str, Callable[[], dict[int, float]]], rounds: int
) -> tuple[list[float], dict[str, Times]]:
    read: list[float] = []
    times: dict[str, Times] = {name: {rows: [] for rows in ROWS} for name in arms}
    memory = torch.ones(1 << 27)  # 512 MB, far more than any cache
    for turn in range(rounds + 1):
        started = time.perf_counter()
        memory.sum()
        seconds = time.perf_counter() - started
        if turn:  # the first round pays for memory that later ones find in place
            read.append(memory.nbytes / seconds)
        for name, arm in arms.items():
            time.sleep(_PAUSE_S)
            for rows, taken in arm().items():
                if turn:
                    times[name][rows].append(taken)
        print(f"round {turn} of {rounds}", file=sys.stderr)
    return read, times


def _stepper(decoder: Decoder, context: int) -> Callable[[], dict[int, float]]:
    cache = decoder.new_cache(num_slots=1, max_length=context + max(ROWS))
    slot = cache.allocate(context + max(ROWS))
    decoder.forward([Chunk(slot, [index % 1000 for index in range(context)], 0)], cache)

    def step() -> dict[int, float]:
        times = {}
        for rows in ROWS:
            started = time.perf_counter()
            decoder.forward([Chunk(slot, list(range(rows)), rows)], cache)
            times[rows] = time.perf_counter() - started
            cache.truncate(slot, context)
        return times

    return step


def _llama(binary: Path, model: str, context: int, threads: int) -> Callable[[], dict[int, float]]:
    command = [str(binary), "-m", model, "-t", str(threads), "-n", "0", "-d", str(context)]
    command += ["-p", ",".join(map(str, ROWS)), "-r", "3", "-o", "json"]

    def step() -> dict[int, float]:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return {one["n_prompt"]: one["avg_ns"] / 1e9 for one in json.loads(done.stdout)}

    return step


def _report(
    arguments: argparse.Namespace,
    threads: int,
    read: list[float],
    times: dict[str, Times],
    weights: dict[str, int],
) -> str:
    bandwidth = statistics.median(read)
    lines = [
        "# Cost of a forward pass",
        "",
        f"Model {Path(arguments.model).name}, {threads} threads, new tokens behind"
        f" {arguments.context} in the cache, {arguments.rounds}",
        "interleaved rounds, medians in ms; in brackets, against one token of the same kind.",
        f"Reading memory alone, in the same rounds: {bandwidth / 1e9:.1f} GB/s.",
        "",
        "| weights | " + " | ".join(map(str, ROWS)) + " | read per pass | share of memory speed |",
        "|---" * (len(ROWS) + 3) + "|",
    ]
    for name, by_rows in times.items():
        medians = {rows: statistics.median(taken) for rows, taken in by_rows.items()}
        cells = [f"{medians[rows] * 1e3:.1f} ({medians[rows] / medians[1]:.2f})" for rows in ROWS]
        if weights.get(name):
            share = weights[name] / medians[1] / bandwidth
            cells += [f"{weights[name] / 1e6:,.0f} MB", f"{share:.0%}"]
        else:
            cells += ["", ""]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"Command: `python {shlex.join(sys.argv)}`", ""])


if __name__ == "__main__":
    main()
