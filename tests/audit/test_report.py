"""What a person reads."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from outrider.audit import AuditPlan, Prompt, Report, render, run_audit

from .servers import SmallServer

pytestmark = pytest.mark.anyio


async def report_of(server: SmallServer, **settings: Any) -> Report:
    prompts = (Prompt("first [bold]", (0,)), Prompt("second", (1,)))
    async with server.running():
        plan = AuditPlan(
            server.url, prompts, samples=200, greedy_tokens=16, copies=50, concurrency=1, **settings
        )
        return await run_audit(plan, np.random.default_rng(0), lambda *_: None)


def lines(report: Report, width: int) -> list[str]:
    out = io.StringIO()
    render(report, Console(file=out, width=width, highlight=False))
    return out.getvalue().splitlines()


def read(report: Report) -> str:
    return " ".join(" ".join(lines(report, 110)).split())


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


async def test_a_narrow_terminal_keeps_names_and_verdicts_and_loses_other_columns() -> None:
    report = await report_of(SmallServer(lie=0.4))
    heads = {}
    for width in (80, 120):
        shown = lines(report, width)
        assert max(map(len, shown)) <= width
        start = next(at for at, line in enumerate(shown) if line.startswith("prompt"))
        heads[width] = shown[start].split()
        assert shown[start + 1].startswith("first [bold] ")
        assert shown[start + 3].startswith("all together ")
        assert all("DIFFERS" in line for line in shown[start + 1 : start + 4])
        assert "…" not in "".join(shown)
    kept = ["prompt", "drafted", "p", "adjusted", "TV", "honest", "TV", "finds", "TV"]
    assert heads[80] == kept
    assert set(heads[120]) - set(kept) == {"samples", "cells", "G"}


async def test_nothing_that_a_server_says_reaches_the_terminal_raw() -> None:
    class Nasty(SmallServer):
        def _account(self, body, on):
            nasty = "\x1b]0;owned\x07\x1b[2J\u202e"
            return super()._account(body, on) | {
                "verification": nasty,
                "reason": nasty + "x" * 10_000,
            }

        def _draw(self, body, on):
            return [f"\x1b[2J{token}\n" for token in super()._draw(body, on)]

    report = await report_of(Nasty(ids=False, lie=0.4, greedy_lie=3))
    shown = lines(report, 200)
    assert all(line.isprintable() for line in shown)
    assert len("".join(shown)) < 10_000
    assert any(r"\x1b[2J" in line for line in shown)
