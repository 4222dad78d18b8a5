"""What a program reads."""

from __future__ import annotations

import json

import numpy as np
import pytest

from outrider.audit import AuditPlan, Prompt, as_json, run_audit

from .servers import SmallServer

pytestmark = pytest.mark.anyio


async def test_json_holds_every_cell() -> None:
    async with SmallServer().running() as server:
        prompts = (Prompt("first", (0,)), Prompt("second", (1,)))
        plan = AuditPlan(
            server.url, prompts, samples=200, generate=4, greedy_tokens=16, copies=50, concurrency=1
        )
        report = await run_audit(plan, np.random.default_rng(0), lambda *_: None)
    values = json.loads(json.dumps(as_json(report)))
    assert values["verdict"] == "no difference found"
    for sampled in values["sampled"]:
        assert sum(cell["plain"] for cell in sampled["cells"]) == 200
        assert sampled["drafts"]["claims"] == [
            {"verification": "matching", "exact": "distribution", "reason": None}
        ]
