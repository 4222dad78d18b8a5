"""What does a forward pass over n new tokens cost, against one over a single token?

Speculation pays where this curve is flat. Row counts are measured in turn, round after round, so
that whatever else the machine does hits them alike.

    python scripts/step_cost.py --report FILE.md
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from pathlib import Path

import torch

from outrider.config import load_settings
from outrider.engine import Chunk, Decoder, load_decoder
from outrider.models import resolve

ROWS = (1, 2, 4, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--context", type=int, default=256, help="tokens behind which to step")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    engine = load_settings().engine
    folder = resolve(engine.target, home=load_settings().home, dtype=engine.dtype)
    times = _measure(load_decoder(folder.path, engine), arguments.context, arguments.rounds)
    one = statistics.median(times[1])
    lines = [
        "# Cost of a forward pass",
        "",
        f"Model {engine.target}, {engine.dtype}, {torch.get_num_threads()} threads, new tokens",
        f"behind {arguments.context} in the cache, {arguments.rounds} interleaved rounds, medians.",
        "",
        "| new tokens | ms | against one |",
        "|---|---|---|",
    ]
    for rows, taken in times.items():
        median = statistics.median(taken)
        lines.append(f"| {rows} | {median * 1000:.1f} | {median / one:.2f} |")
    text = "\n".join([*lines, "", f"Command: `python {shlex.join(sys.argv)}`", ""])
    arguments.report.write_text(text)
    print(text)


def _measure(decoder: Decoder, context: int, rounds: int) -> dict[int, list[float]]:
    cache = decoder.new_cache(num_slots=1, max_length=context + max(ROWS))
    slot = cache.allocate()
    decoder.forward([Chunk(slot, [index % 1000 for index in range(context)], 0)], cache)
    times: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for turn in range(rounds + 1):
        for rows, taken in times.items():
            started = time.perf_counter()
            decoder.forward([Chunk(slot, list(range(rows)), rows)], cache)
            if turn:  # the first round pays for memory that later ones find in place
                taken.append(time.perf_counter() - started)
            cache.truncate(slot, context)
    return times


if __name__ == "__main__":
    main()
