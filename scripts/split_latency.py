"""Tokens per second of a split deployment by the distance between gateway and target.

Starts a target server, a draft server beside the gateway, and per distance four gateways: without
drafts (the target runs free), with drafts one after the other, with each draft made while the
target judges the one before, and with the controller's choice. A proxy delays what travels between
gateway and target. Every prompt is asked of all four in turn, in an order that rotates.

Each server gets cores of its own with `--target-cores` and `--draft-cores` (as for taskset), as
they would on machines of their own.

    python scripts/split_latency.py PROMPTS.jsonl --target T.gguf --draft D.gguf --report FILE.md

The report sets the measured speeds beside those of the formulas for synchronous and pipelined
drafting (PEARL, arXiv 2408.11850), from acceptance and times measured in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shlex
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the delaying proxy is that of the tests

from outrider.bench import Answer, EndpointSubject, Prompt, read_prompts  # noqa: E402 # after the path
from outrider.bench.statistics import geometric_mean_interval  # noqa: E402 # as above
from outrider.endpoints import connect  # noqa: E402 # as above
from tests.proxy import Proxy  # noqa: E402 # as above

MODES = {
    "plain": {"drafts": "none"},
    "synchronous": {"controller": "fixed", "ahead": "never"},
    "pipelined": {"controller": "fixed", "ahead": "always"},
    "controller": {"controller": "goodput"},
}


@dataclass
class Seen:
    """What one mode came to at one distance: speeds by prompt, and sums over its requests.

    Attributes:
        step_s, steps: of the target, by its own histogram.
        draft_s, drafts: of the draft server, likewise.
    """

    speeds: list[float] = field(default_factory=list)
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    step_s: float = 0.0
    steps: float = 0.0
    draft_s: float = 0.0
    drafts: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("prompts", nargs="+", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--rtt", default="0,1,5,20", help="ms, several")
    parser.add_argument("--lookahead", type=int, default=4)
    parser.add_argument("--limit", type=int, default=6, help="prompts of each file")
    parser.add_argument("--warm", type=int, default=2, help="prompts of each mode not counted")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--target-cores", default="0")
    parser.add_argument("--draft-cores", default="1")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    text = asyncio.run(_measure(arguments))
    arguments.report.write_text(text)
    print(text)


async def _measure(arguments: argparse.Namespace) -> str:
    prompts = read_prompts(arguments.prompts, arguments.limit + arguments.warm)
    rows: dict[float, dict[str, Seen]] = {}
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(
            _part("target", "--target", arguments.target, cores=arguments.target_cores)
        )
        draft = await stack.enter_async_context(
            _part("draft", "--model", arguments.draft, cores=arguments.draft_cores)
        )
        for rtt in map(float, arguments.rtt.split(",")):
            port = int(target[0].rpartition(":")[2])
            proxy = await stack.enter_async_context(Proxy(port, delay_s=rtt / 2000))
            rows[rtt] = await _at(proxy.port, (target[1], draft[0]), prompts, arguments)
    return _report(rows, arguments)


async def _at(
    port: int, servers: tuple[str, str], prompts: list[Prompt], arguments: argparse.Namespace
) -> dict[str, Seen]:
    """All modes over one wire; `servers` are where metrics are, the draft server's its address."""
    seen = {mode: Seen() for mode in MODES}
    async with AsyncExitStack() as stack:
        subjects = {}
        for mode, settings in MODES.items():
            env = {
                f"OUTRIDER_SPECULATION__{name.upper()}": value for name, value in settings.items()
            }
            env.setdefault("OUTRIDER_SPECULATION__DRAFTS", servers[1])
            env["OUTRIDER_SPECULATION__REMOTE_DEADLINE_MS"] = "2000"
            env["OUTRIDER_SPECULATION__LOOKAHEAD"] = str(arguments.lookahead)
            gateway = await stack.enter_async_context(
                _part(
                    "gateway",
                    *("--target", f"grpc://127.0.0.1:{port}"),
                    cores=arguments.draft_cores,
                    env=env,
                )
            )
            [endpoint] = await stack.enter_async_context(
                connect(gateway[0], api_key=None, timeout_s=600, concurrency=1)
            )
            model = await endpoint.only_model()
            fields = {"temperature": 0, "max_tokens": arguments.max_tokens}
            subjects[mode] = EndpointSubject(endpoint, model, fields, mode, time.perf_counter)
        for index, prompt in enumerate(prompts):
            order = list(MODES)[index % len(MODES) :] + list(MODES)[: index % len(MODES)]
            for mode in order:
                before = await _costs(*servers)
                answer = await subjects[mode].ask(prompt.question())
                if index % (arguments.limit + arguments.warm) >= arguments.warm:
                    _add(seen[mode], answer, before, await _costs(*servers))
            print(f"prompt {index + 1} of {len(prompts)}", file=sys.stderr)
    return seen


@asynccontextmanager
async def _part(
    *arguments: str, cores: str, env: dict[str, str] | None = None
) -> AsyncIterator[list[str]]:
    """A process of the deployment; the addresses that it tells."""
    status = ["--status-port", "0"] if arguments[0] == "target" else []
    process = await asyncio.create_subprocess_exec(
        *("taskset", "-c", cores, sys.executable, "-m", "outrider", "serve"),
        *(*arguments, "--port", "0", *status),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"OUTRIDER_ENGINE__THREADS": str(len(cores.split(",")))} | (env or {}),
    )
    try:
        first = (await process.stdout.readline()).decode()
        if not first:
            raise SystemExit(f"{arguments} ended with {await process.wait()}")
        yield re.findall(r"(?:grpc|http)://[^\s,;)]+", first)
    finally:
        process.kill()
        await process.wait()


async def _costs(target: str, draft: str) -> list[float]:
    """Seconds and count of the target's steps, and of the drafts, so far."""
    found = []
    async with httpx.AsyncClient(timeout=30) as client:
        for server, name in ((target, "outrider_target_step"), (draft, "outrider_draft")):
            text = (await client.get(f"{server}/metrics")).text
            for part in ("sum", "count"):
                value = re.search(rf"^{name}_seconds_{part} (\S+)$", text, re.M)
                found.append(float(value[1]) if value else 0.0)
    return found


def _add(seen: Seen, answer: Answer, before: list[float], after: list[float]) -> None:
    seen.speeds.append((answer.tokens - 1) / answer.decode_s)
    seen.tokens += answer.tokens
    if answer.drafts is not None:
        seen.drafted += answer.drafts.drafted
        seen.accepted += answer.drafts.accepted
        seen.rounds += answer.drafts.rounds or 0
    spent = [late - early for late, early in zip(after, before, strict=True)]
    seen.step_s += spent[0]
    seen.steps += spent[1]
    seen.draft_s += spent[2]
    seen.drafts += spent[3]


def _predicted(mode: str, modes: dict[str, Seen], rtt_s: float, lookahead: int) -> float | None:
    """Tokens per second by the formulas, from times and acceptance of the synchronous mode."""
    plain, measured = modes["plain"], modes["synchronous"]
    if mode == "plain":
        return plain.steps / plain.step_s
    per_round = measured.tokens / measured.rounds
    draft_s, step_s = measured.draft_s / measured.drafts, measured.step_s / measured.steps
    if mode == "synchronous":
        return per_round / (draft_s + rtt_s + step_s)
    if mode == "controller":
        return None
    # The chance that all drafted tokens hold and the guess at the bonus token too.
    hit = (measured.accepted / measured.drafted) ** (lookahead + 1)
    wait_s = rtt_s + step_s
    return per_round / (hit * max(wait_s, draft_s) + (1 - hit) * (wait_s + draft_s))


def _report(rows: dict[float, dict[str, Seen]], arguments: argparse.Namespace) -> str:
    lines = [
        "| RTT | mode | tokens/s, median | against plain | predicted | accepted of drafted |",
        "|---|---|---|---|---|---|",
    ]
    for rtt, modes in rows.items():
        plain = modes["plain"].speeds
        for mode, seen in modes.items():
            ratios = [one / other for one, other in zip(seen.speeds, plain, strict=True)]
            interval = geometric_mean_interval(ratios)
            predicted = _predicted(mode, modes, rtt / 1000, arguments.lookahead)
            share = f"{seen.accepted / seen.drafted:.0%}" if seen.drafted else "-"
            lines.append(
                f"| {rtt:g} ms | {mode} | {statistics.median(seen.speeds):.1f} | "
                f"{interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}] | "
                f"{'-' if predicted is None else f'{predicted:.1f}'} | {share} |"
            )
    command = [Path(word).name if "/" in word else word for word in sys.argv]
    return "\n".join([*lines, "", f"Command: `python {shlex.join(command)}`", ""])


if __name__ == "__main__":
    main()
