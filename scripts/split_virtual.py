"""What the controller makes of a deployment's times, in virtual time: a table.

The real round loop and controller over a target and a drafter that only wait, so that no machine's
noise is in it but that which is put there. Eight sessions of a gateway that knew nothing before,
the first two not counted, with drafts right in 55 to 97% of places; three such gateways a cell.

    python scripts/split_virtual.py > table.md
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
from pathlib import Path

import structlog

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the virtual deployment is that of the tests

from tests.pipeline.scenes import table_target  # noqa: E402 # after the path
from tests.pipeline.virtual import MODES, Deployment, speeds  # noqa: E402 # likewise

# The target's first and further tokens of a step, the draft's beginning and tokens; seconds.
DRAFTERS = {
    "140 + 30 ms, 20 + 35 ms": ((0.14, 0.03), (0.02, 0.035)),
    "140 + 10 ms, 5 + 10 ms": ((0.14, 0.01), (0.005, 0.01)),
    "140 + 30 ms, 20 + 80 ms": ((0.14, 0.03), (0.02, 0.08)),
}
READS_S = (0.0, 0.3, 1.5, 5.0)
RTTS_S = (0.0005, 0.005, 0.02, 0.1)
SESSIONS, NEW, GATEWAYS = 8, 2, 3


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    print("| target, draft | prompt read in | RTT | " + " | ".join(list(MODES)[1:]), end="")
    print(" | of the best of the others |\n" + "|---" * (3 + len(MODES)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.json"
        logits = {key: [0.0] * 5 for key in ("", *map(str, range(5)))}
        table.write_text(json.dumps({"vocab_size": 5, "order": 1, "eos": [], "logits": logits}))
        for name, (token_s, draft_s) in DRAFTERS.items():
            for read_s in READS_S:
                for rtt_s in RTTS_S:
                    deployment = Deployment(token_s, draft_s, read_s=read_s, rtt_s=rtt_s)
                    found = {mode: _speed(mode, deployment, table) for mode in MODES}
                    plain = found["plain"]
                    best = max(speed for mode, speed in found.items() if mode != "controller")
                    cells = [f"{found[mode] / plain:.2f}" for mode in list(MODES)[1:]]
                    share = f"{found['controller'] / best:.1%}"
                    where = [name, f"{read_s:g} s", f"{rtt_s * 1000:g} ms"]
                    print("| " + " | ".join([*where, *cells, share]) + " |", flush=True)


def _speed(mode: str, deployment: Deployment, table: Path) -> float:
    found: list[float] = []
    for seed in range(GATEWAYS):
        rng = random.Random(seed)
        rates = [rng.choice([0.55, 0.7, 0.8, 0.9, 0.97]) for _ in range(SESSIONS)]
        found += speeds(mode, deployment, table_target(table), rates=rates, seed=seed)[NEW:]
    return math.exp(sum(map(math.log, found)) / len(found))


if __name__ == "__main__":
    main()
