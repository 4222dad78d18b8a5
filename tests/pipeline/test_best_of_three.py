"""What the controller picks, against plain decoding, drafts in turn, and drafts made ahead."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from tests.pipeline.scenes import table_target
from tests.pipeline.virtual import MODES, Deployment, speeds

DRAFTERS = {
    "hardly fast enough": ((0.14, 0.03), (0.02, 0.035)),
    "fast": ((0.14, 0.01), (0.005, 0.01)),
    "too slow": ((0.14, 0.03), (0.02, 0.08)),
}
REPEATS, SESSIONS, NEW = 2, 8, 2
"""Sessions of each gateway, of which the first do not count: it comes to know its drafter."""


def speed(mode: str, deployment: Deployment, file: Path) -> float:
    """Geometric mean over sessions."""
    found: list[float] = []
    for seed in range(REPEATS):
        rng = random.Random(seed)
        rates = [rng.choice([0.55, 0.7, 0.8, 0.9, 0.97]) for _ in range(SESSIONS)]
        found += speeds(mode, deployment, table_target(file), rates=rates, seed=seed)[NEW:]
    return math.exp(sum(map(math.log, found)) / len(found))


@pytest.mark.parametrize("read_s", [0.0, 1.5])
@pytest.mark.parametrize("rtt_s", [0.0005, 0.02])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_controller_is_never_behind_the_best_of_the_three(
    drafter: str, rtt_s: float, read_s: float, file: Path
) -> None:
    token_s, draft_s = DRAFTERS[drafter]
    deployment = Deployment(token_s, draft_s, read_s=read_s, rtt_s=rtt_s)
    found = {mode: speed(mode, deployment, file) for mode in MODES}
    chosen = found.pop("controller")
    assert chosen >= 0.97 * max(found.values()), found
