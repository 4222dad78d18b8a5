"""Are outputs distributed over HTTP as they should be? The long form of a test of the suite.

For every setting and method: sample four tokens many times from a gateway over real sockets, and
compare their joint distribution with the exact one, by enumeration in plain Python.

    python -m scripts.http_joint --samples 100000 --settings 1 --report FILE.md

What was sampled is kept in the report's `.jsonl` sibling: run again to go on after an interruption.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shlex
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from tests.integration.fit import Fit, fit, g_statistics, pool
from tests.integration.joint import (
    LENGTH,
    METHODS,
    PROMPT,
    SETTINGS,
    Joint,
    drafted_for,
    draw,
    serving,
)

_TABLES = 100_000
_AT_ONCE = 5_000
_LEVEL = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--samples", type=int, default=100_000, help="per setting and method")
    parser.add_argument("--settings", type=int, default=len(SETTINGS), help="the first so many")
    parser.add_argument("--jobs", type=int, default=2, help="servers at a time, a process each")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    kept = arguments.report.with_suffix(".jsonl")
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(row["setting"], row["method"]) for row in rows}
    names = list(SETTINGS)[: arguments.settings]
    wanted = [(s, m) for s in names for m in reversed(METHODS) if (s, m) not in done]
    with ProcessPoolExecutor(arguments.jobs) as jobs, kept.open("a") as log:
        under_way = [jobs.submit(_sample, *pair, arguments.samples) for pair in wanted]
        for job in as_completed(under_way):
            rows.append(job.result())
            log.write(json.dumps(rows[-1]) + "\n")
            log.flush()
            _report(rows, arguments.report)
    sys.exit(not _report(rows, arguments.report))


def _report(rows: list[dict[str, Any]], file: Path) -> bool:
    """Write what was found so far; whether it is as it should be."""
    introduction = _INTRODUCTION.format(length=LENGTH, prompt=list(PROMPT), tables=_TABLES)
    found = {name: [row for row in rows if row["setting"] == name] for name in SETTINGS}
    parts = [_part(name, rows) for name, rows in found.items() if rows]
    command = f"Command: `python -m scripts.http_joint {shlex.join(sys.argv[1:])}`\n"
    file.write_text("\n".join([introduction, *(text for text, _ in parts), command]))
    return all(fine for _, fine in parts)


_INTRODUCTION = """\
# Joint distribution of sampled tokens over HTTP

A gateway over real sockets serves a table of logits (vocabulary 4, order 2); another table drafts,
two tokens a round. Each sample is an output of {length} tokens behind the prompt {prompt},
unseeded, 128 copies in a request. The exact probabilities come from an enumeration with a plain
implementation of penalties, bias, masks and warping that shares no code with the product's.

- *whole*: the joint of the whole output; *drafted for*: of what follows the first token, for which
  nothing is drafted: of three tokens, 64 cells, less those that the parameters exclude.
- *impossible*: outputs sampled that have probability 0.
- *G*: 2 sum O ln(O / E), with outcomes of less than 5 expected samples put together; its degrees of
  freedom, and its p-value by the chi-square distribution and by {tables} tables drawn from the
  exact joint.
- *TV*: total variation between sample and exact joint; *floor*: what it is on average for honest
  samples, half the sum of sqrt(2 p (1 - p) / (pi N)).
"""


def _sample(name: str, method: str, size: int) -> dict[str, Any]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    setting = SETTINGS[name]

    async def work() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            async with serving(Path(folder), setting.target, {"draft": setting.draft}) as gateway:
                sample = await draw(gateway, setting, method, size)
        counts = {" ".join(map(str, ids)): count for ids, count in sorted(sample.counts.items())}
        return {
            "setting": name,
            "method": method,
            "verification": sorted(sample.methods),
            "drafted": sample.drafted,
            "accepted": sample.accepted,
            "draft_failures": sample.failures,
            "counts": counts,
        }

    return asyncio.run(work())


def _part(name: str, rows: list[dict[str, Any]]) -> tuple[str, bool]:
    setting = SETTINGS[name]
    lines = [
        f"## {name[0].upper()}{name[1:]}\n",
        f"Request: `{json.dumps(setting.request)}`\n",
        "| method | joint | cells | samples | drafted | accepted | impossible | G | df "
        "| p, chi-square | p, drawn | TV | floor |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    fine = True
    rng = np.random.default_rng(0)
    rows = sorted(rows, key=lambda row: list(METHODS).index(row["method"]))
    whole = setting.joint()
    for kind, exact in (("whole", whole), ("drafted for", drafted_for(whole))):
        null: dict[int, np.ndarray] = {}
        for row in rows:
            counts = {tuple(map(int, ids.split())): n for ids, n in row["counts"].items()}
            found = fit(counts if kind == "whole" else drafted_for(counts), exact)
            if found.size not in null:
                null[found.size] = _null(exact, found.size, rng)
            drawn = (1 + int((null[found.size] >= found.g).sum())) / (_TABLES + 1)
            lines.append(_line(f"{row['method']} | {kind} | {len(exact)}", row, found, drawn))
            fine = fine and found.impossible == 0 and drawn > _LEVEL
    return "\n".join(lines) + "\n", fine


def _null(exact: Joint, size: int, rng: np.random.Generator) -> np.ndarray:
    """G statistics of honest samples."""
    probs = np.array([exact[cell] for cell in sorted(exact)])
    found = []
    for _ in range(_TABLES // _AT_ONCE):
        pooled, expected = pool(rng.multinomial(size, probs, size=_AT_ONCE), size * probs)
        found.append(g_statistics(pooled, expected))
    return np.concatenate(found)


def _line(start: str, row: dict[str, Any], found: Fit, drawn: float) -> str:
    return (
        f"| {start} | {found.size} | {row['drafted']} | {row['accepted']} | {found.impossible} "
        f"| {found.g:.1f} | {found.df} | {found.p_value:.3f} | {drawn:.3f} "
        f"| {found.tv:.5f} | {found.tv_floor:.5f} |"
    )


if __name__ == "__main__":
    main()
