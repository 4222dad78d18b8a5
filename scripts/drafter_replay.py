"""Which model-free drafter guesses real outputs best, and what does a guess cost?

`record` decodes prompts greedily and keeps the token ids. `compare` replays them: each drafter sees
prompt and output so far, guesses, and the output advances by what it got right and one token more,
as a round does. So no model runs, and all drafters are judged on the same outputs. `cold` forgets
everything between prompts; `warm` releases each output to the drafter before the next prompt.
`cost` times the suffix drafter on made-up texts, the worst kinds among them: 32k tokens of context
behind a full cache. Times are of this thread's CPU.

    python scripts/drafter_replay.py record PROMPTS.jsonl ... --output TOKENS.jsonl
    python scripts/drafter_replay.py compare TOKENS.jsonl --lookahead 8
    python scripts/drafter_replay.py cost
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from outrider.bench import Encoder, decode, read_prompts
from outrider.config import load_settings
from outrider.drafters import Drafter, NgramDrafter, SessionView
from outrider.drafters.suffix import SuffixDrafter
from outrider.pipeline import create_pipeline
from outrider.types import SamplingParams

DRAFTERS: dict[str, Callable[[], Drafter]] = {"ngram": NgramDrafter, "suffix": SuffixDrafter}


@dataclass(slots=True)
class Tally:
    """What rounds came to. `us` are microseconds of CPU time per call of a drafter."""

    rounds: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    us: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="decode prompts greedily and keep the tokens")
    record.add_argument("prompts", nargs="+", type=Path)
    record.add_argument("--target", help="model; the default is the one configured")
    record.add_argument("--max-tokens", type=int, default=128)
    record.add_argument("--limit", type=int, help="prompts of each file, evenly spread")
    record.add_argument("--threads", type=int, default=0)
    record.add_argument("--output", type=Path, required=True)
    compare = commands.add_parser("compare", help="replay kept tokens through each drafter")
    compare.add_argument("tokens", nargs="+", type=Path)
    compare.add_argument("--lookahead", type=int, default=8)
    commands.add_parser("cost", help="time the suffix drafter at 32k tokens of context")
    arguments = parser.parse_args()
    work = {"record": _record, "compare": _compare, "cost": _cost}[arguments.command]
    asyncio.run(work(arguments))


async def _record(arguments: argparse.Namespace) -> None:
    engine = {"target": arguments.target, "threads": arguments.threads}
    speculation = {
        "drafts": "ngram",
        "controller": "window",
    }  # changes the output of no greedy request, only its speed
    pipeline = await create_pipeline(
        load_settings(None, {"engine": engine, "speculation": speculation})
    )
    encoder = Encoder(pipeline)
    sampling = SamplingParams(temperature=0.0, max_tokens=arguments.max_tokens)
    try:
        with arguments.output.open("a") as log:
            for prompt in read_prompts(arguments.prompts, arguments.limit, turns=1):
                ids = encoder.encode(prompt.question())
                session = pipeline.session(ids, sampling)
                await decode(pipeline, session, time.perf_counter)
                row = {"source": prompt.source, "prompt": ids, "output": session.output_ids}
                log.write(json.dumps(row) + "\n")
                log.flush()
    finally:
        await pipeline.close()


async def _compare(arguments: argparse.Namespace) -> None:
    rows = [json.loads(line) for file in arguments.tokens for line in file.open()]
    print(
        "| prompts | drafter | rounds with a draft | drafted per draft | accepted per round |",
        end="",
    )
    print(" of the drafted | CPU us per call, median / 99% |")
    print("|---|---|---|---|---|---|---|")
    for name, make in DRAFTERS.items():
        for memory in ("cold", "warm") if name == "suffix" else ("cold",):
            tallies = await _replay(make, rows, arguments.lookahead, memory == "warm")
            for source, tally in tallies.items():
                label = f"{name}, {memory}" if name == "suffix" else name
                print(f"| {source} | {label} | {_line(tally)} |")


async def _replay(
    make: Callable[[], Drafter], rows: Iterable[dict], lookahead: int, warm: bool
) -> dict[str, Tally]:
    tallies: dict[str, Tally] = defaultdict(Tally)
    drafter = make()
    for number, row in enumerate(rows):
        if not warm:
            drafter = make()
        await _one(drafter, str(number), row, lookahead, tallies[row["source"]])
        await drafter.release(str(number))
    return tallies


async def _one(drafter: Drafter, name: str, row: dict, lookahead: int, tally: Tally) -> None:
    prompt, output = row["prompt"], row["output"]
    tokens = [*prompt, *output[:1]]  # the first token is never drafted for
    while (done := len(tokens) - len(prompt)) < len(output):
        view = _view(name, tokens, len(tokens), len(prompt), len(output))
        started = time.thread_time()
        draft = await drafter.propose(view, min(lookahead, len(output) - done - 1))
        tally.us.append((time.thread_time() - started) * 1e6)
        rest = output[done:]
        accepted = 0
        while accepted < len(draft) and draft.token_ids[accepted] == rest[accepted]:
            accepted += 1
        tally.rounds += 1
        tally.drafts += len(draft) > 0
        tally.drafted += len(draft)
        tally.accepted += accepted
        tokens += rest[: accepted + 1]


async def _cost(_: argparse.Namespace) -> None:
    draw = random.Random(1)
    phrases = [[draw.randrange(50_000) for _ in range(draw.randint(3, 30))] for _ in range(2000)]
    kinds: dict[str, Callable[[], list[int]]] = {
        "phrases": lambda: [token for _ in range(2500) for token in draw.choice(phrases)],
        "one token": lambda: [7] * 34_000,
        "two tokens": lambda: [draw.randrange(2) for _ in range(34_000)],
        "random tokens": lambda: [draw.randrange(150_000) for _ in range(34_000)],
    }
    print("| text | reading 32k | longest piece of it | us per token, median / 99% | cache MB |")
    print("|---|---|---|---|---|")
    for kind, make in kinds.items():
        drafter = SuffixDrafter()
        for number in range(10):
            output = make()
            await drafter.propose(_view(str(number), output, len(output), 1, 34_000), 4)
            await drafter.release(str(number))
        tokens = make()
        pauses: list[float] = []
        watch = asyncio.create_task(_watch(pauses))
        await asyncio.sleep(0)
        begun = time.thread_time()
        await drafter.propose(_view("asks", tokens, 32_000, 32_000, 34_000), 16)
        reading = time.thread_time() - begun
        watch.cancel()
        us = []
        for length in range(32_001, 33_000):
            view = _view("asks", tokens, length, 32_000, 34_000)
            begun = time.thread_time()
            await drafter.propose(view, 16)
            us.append((time.thread_time() - begun) * 1e6)
        us.sort()
        print(
            f"| {kind} | {reading * 1e3:.1f} ms | {max(pauses) * 1e3:.1f} ms | "
            f"{us[len(us) // 2]:.1f} / {us[len(us) * 99 // 100]:.1f} | "
            f"{drafter.cache_bytes() / 1e6:.1f} |"
        )


def _view(name: str, tokens: list[int], length: int, prompt: int, most: int) -> SessionView:
    sampling = SamplingParams(max_tokens=most)
    return SessionView(name, tokens, length, prompt, sampling, noise_key=0)


async def _watch(pauses: list[float]) -> None:
    """How long others have to wait for the event loop, time and again."""
    while True:
        begun = time.thread_time()
        await asyncio.sleep(0)
        pauses.append(time.thread_time() - begun)


def _line(tally: Tally) -> str:
    us = sorted(tally.us)
    share = tally.accepted / tally.drafted if tally.drafted else 0.0
    return (
        f"{tally.drafts / tally.rounds:.0%} | {tally.drafted / max(tally.drafts, 1):.1f} | "
        f"{tally.accepted / tally.rounds:.2f} | {share:.0%} | "
        f"{us[len(us) // 2]:.1f} / {us[len(us) * 99 // 100]:.1f}"
    )


if __name__ == "__main__":
    main()
