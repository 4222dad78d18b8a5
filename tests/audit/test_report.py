"""What a person reads, and what a program reads."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from outrider.audit import AuditPlan, Prompt, Report, as_json, render, run_audit

from .servers import SmallServer

pytestmark = pytest.mark.anyio


async def report_of(server: SmallServer, **settings: Any) -> Report:
    prompts = (Prompt("first [bold]", (0,)), Prompt("second", (1,)))
    async with server.running():
        plan = AuditPlan(
            server.url, prompts, samples=200, greedy_tokens=16, concurrency=1, **settings
        )
        return await run_audit(plan, np.random.default_rng(0), lambda *_: None)


def read(report: Report) -> str:
    out = io.StringIO()
    render(report, Console(file=out, width=110, highlight=False))
    return " ".join(out.getvalue().split())


async def test_a_pass_says_what_it_means_in_numbers() -> None:
    said = read(await report_of(SmallServer()))
    assert "no difference found: a shift by" in said
    assert "drafted tokens were judged while sampling" in said
    assert "Greedy: 2 of 2 outputs identical (32 tokens)" in said
    assert "Seeded: 2 of 2 outputs identical" in said
    assert "first [bold]" in said


async def test_a_difference_is_shown_by_prompt_cell_and_count() -> None:
    said = read(await report_of(SmallServer(lie=0.4, greedy_lie=3)))
    assert "DIFFERS: the distribution of the first 3 tokens differs on 'first [bold]'" in said
    assert "most different on first [bold]" in said
    assert "first [bold]: differs at 3: 1 '1 4 0" in said
    assert "without speculation the server repeats itself" in said


async def test_json_holds_every_cell() -> None:
    report = await report_of(SmallServer(), generate=4)
    values = json.loads(json.dumps(as_json(report)))
    assert values["verdict"] == "no difference found"
    for sampled in values["sampled"]:
        assert sum(cell["plain"] for cell in sampled["cells"]) == 200
        assert sampled["drafts"]["claims"] == [
            {"verification": "matching", "exact": "distribution", "reason": None}
        ]
