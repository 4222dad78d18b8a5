"""Training a draft as a user does it: data, distil, evaluate, export, serve."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.train.toy import write_toy

pytestmark = pytest.mark.integration

OUTRIDER = [sys.executable, "-m", "outrider"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OUTRIDER_ENGINE__THREADS": "1"}
RECIPE = [
    "--layers", "1", "--vocabulary", "262", "--epochs", "4", "--learning-rate", "0.003",
    "--batch-tokens", "1024", "--part-tokens", "512", "--precision", "float32",
    "--report-every", "1", "--evaluate-every", "8", "--save-every", "8",
]  # fmt: skip


def outrider(*arguments: object, expect: int = 0) -> subprocess.CompletedProcess[str]:
    return command(*OUTRIDER, *arguments, expect=expect)


def command(*arguments: object, expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(each) for each in arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == expect, done.stderr
    return done


def journal(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(scope="module")
def data(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prompts = folder / "prompts.jsonl"
    lines = [{"turns": [f"What is {n}?"], "category": "ab"[n % 2]} for n in range(40)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    out = folder / "answers"
    outrider(
        "train", "data", prompts, "--target", toy, "--out", out, "--temperature", "0",
        "--max-tokens", "40", "--holdout", "0.25", "--logits", "16",
    )  # fmt: skip
    return out


def test_the_whole_path_from_prompts_to_a_served_draft(
    toy: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    distill = ["train", "distill", data, "--target", toy, "--out", out, *RECIPE]
    _interrupt_after_a_step([str(each) for each in distill], out)
    before = max(each["step"] for each in journal(out))
    resumed = outrider(*distill)
    assert f"goes on at step {before}" in resumed.stderr
    judged = [each["held_out"]["acceptance"] for each in journal(out) if "held_out" in each]
    assert judged[-1] > judged[0]
    losses = [each["step"] for each in journal(out) if "loss" in each]
    assert losses == list(range(1, losses[-1] + 1))

    verdict = tmp_path / "verdict.json"
    said = outrider(
        "train", "evaluate", data, "--target", toy, "--draft", out / "draft", "--draft", "ngram",
        "--json", verdict,
    )  # fmt: skip
    assert "draft" in said.stdout
    assert json.loads(verdict.read_text())

    draft = tmp_path / "toy-draft"
    outrider(
        "train", "export", out, "--target", toy, "--data", data, "--evaluation", verdict,
        "--out", draft,
    )  # fmt: skip
    assert "toy" in (draft / "README.md").read_text()
    drafted, plain = _answers(toy, draft)
    assert drafted == plain


def _interrupt_after_a_step(arguments: list[str], out: Path) -> None:
    """Ctrl-C in the middle of a run."""
    with subprocess.Popen(
        [*OUTRIDER, *arguments], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as running:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and running.poll() is None:
            if (out / "metrics.jsonl").exists() and any("loss" in each for each in journal(out)):
                break
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert re.search(r"stopped at step \d+ of \d+; the same command goes on from there", said)


def _answers(toy: Path, draft: Path) -> tuple[str, str]:
    """What is served with the draft, and without one."""
    with subprocess.Popen(
        [*OUTRIDER, "run", "--target", str(toy), "--draft", str(draft), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
    ) as server:
        assert server.stdout is not None
        found = re.search(r"http://[\d.]+:\d+", server.stdout.readline())
        assert found
        texts = []
        for enabled in (True, False):
            body = {
                "model": "toy",
                "messages": [{"role": "user", "content": "What is 101?"}],
                "max_tokens": 40,
                "temperature": 0,
                "speculation": {"enabled": enabled},
            }
            answer = httpx.post(f"{found[0]}/v1/chat/completions", json=body, timeout=60).json()
            assert (answer["speculation"]["drafted_tokens"] > 0) == enabled
            texts.append(answer["choices"][0]["message"]["content"])
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)
    return texts[0], texts[1]


def test_two_processes_train_as_one_does(toy: Path, data: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    recipe = [*RECIPE, "--epochs", "2"]
    arguments = ["train", "distill", data, "--target", toy, *recipe, "--out"]
    outrider(*arguments, one)
    command(
        sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2",
        "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
        "-m", "outrider", *arguments, two,
    )  # fmt: skip
    trajectories = [[each for each in journal(out) if "loss" in each] for out in (one, two)]
    assert len(trajectories[0]) == len(trajectories[1]) > 2
    for alone, shared in zip(*trajectories, strict=True):
        assert alone["tokens"] == shared["tokens"]
        assert alone["loss"] == pytest.approx(shared["loss"], rel=1e-4)
        assert alone["grad_norm"] == pytest.approx(shared["grad_norm"], rel=1e-3)
    assert (two / "draft" / "model.safetensors").exists()
