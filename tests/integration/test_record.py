"""`--record-acceptance` and `outrider simulate` as users start them, over tables."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.integration

OUTRIDER = [sys.executable, "-m", "outrider"]


def test_recorded_acceptance_is_replayed(write_table: Callable[..., Path], tmp_path: Path) -> None:
    table, record = write_table("target", order=2), tmp_path / "record.jsonl"
    draft = write_table("draft", order=2, scale=1.2)
    arguments = ["--target", f"table:{table}", "--draft", f"table:{draft}"]
    arguments += ["--draft", "ngram", "--controller", "window"]
    with subprocess.Popen(
        [*OUTRIDER, "run", "--port", "0", *arguments, "--record-acceptance", str(record)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        found = re.search(r"http://[\d.]+:\d+", server.stdout.readline())
        assert found
        for drafter in ("table:draft", "ngram"):
            for seed in range(4):
                body = {
                    "model": "target",
                    "prompt": [1, 2, 1, 2],
                    "max_tokens": 120,
                    "seed": seed,
                    "speculation": {"drafter": drafter},
                }
                answer = httpx.post(f"{found[0]}/v1/completions", json=body, timeout=30)
                assert answer.status_code == 200
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) == 0
    traces = [json.loads(line) for line in record.read_text().splitlines()]
    assert {trace["drafter"] for trace in traces} == {"table:draft", "ngram"}
    positions = sum(len(trace["accepted"]) for trace in traces if trace["drafter"] != "ngram")
    assert 4 * 119 / 2 < positions <= 4 * 119
    replayed = subprocess.run(
        [*OUTRIDER, "simulate", str(record), "--rtt", "0.3", "--batch", "1", "--join", "4"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert replayed.returncode == 0, replayed.stderr
    assert "RTT 0.3 ms" in replayed.stdout
