"""Workers, asked by lines of JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import outrider.bench.baselines
from outrider.bench.baselines.processes import PeerProcess
from outrider.bench.baselines.worker_link import WorkerLink
from outrider.errors import TargetFailed
from tests.bench.baselines.fakes import WORKER_SCRIPT

Start = Callable[..., PeerProcess]
WORKERS = str(Path(outrider.bench.baselines.__file__).parent)


def link_to(start: Start, *command: str, timeout_s: float = 20.0) -> WorkerLink:
    environment = {"PYTHONPATH": WORKERS, "PYTHONDONTWRITEBYTECODE": "1"}
    process = start(
        *(command or (sys.executable, str(WORKER_SCRIPT))), speaks=True, environment=environment
    )
    return WorkerLink(process, timeout_s=timeout_s)


def test_an_answer_tells_what_came_when_whatever_the_library_prints(start: Start) -> None:
    link = link_to(start)
    link.wait_until_ready(20.0)
    answer = link.ask((1, 2, 3, 4), 3, {})
    assert answer.token_ids == (4, 3, 2)
    assert [chunk.tokens for chunk in answer.chunks] == [1, 2]
    assert answer.asked_at <= answer.chunks[0].at < answer.chunks[1].at <= answer.ended_at


def test_what_the_library_raises_is_told_and_the_worker_goes_on(start: Start) -> None:
    link = link_to(start)
    link.wait_until_ready(20.0)
    with pytest.raises(TargetFailed, match="fake failed: RuntimeError: out of ideas"):
        link.ask((1,), 3, {"do": "fail"})
    assert link.ask((1,), 3, {}).token_ids == (1,)


def test_a_model_that_cannot_be_loaded_is_told(start: Start) -> None:
    link = link_to(start, sys.executable, str(WORKER_SCRIPT), "no-start")
    with pytest.raises(TargetFailed, match="fake failed: ValueError: no such model"):
        link.wait_until_ready(20.0)


def test_a_worker_that_dies_leaves_its_last_words(start: Start) -> None:
    link = link_to(start)
    link.wait_until_ready(20.0)
    with pytest.raises(TargetFailed, match=r"fake ended: .*a fatal fault"):
        link.ask((1,), 3, {"do": "die"})


def test_a_worker_that_hangs_is_given_up(start: Start) -> None:
    link = link_to(start, timeout_s=0.3)
    link.wait_until_ready(20.0)
    with pytest.raises(TargetFailed, match=r"did not answer within 0.3 s") as caught:
        link.ask((1,), 3, {"do": "hang"})
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_anything_but_json_is_a_failure(start: Start) -> None:
    link = link_to(start, "echo", "hello")
    with pytest.raises(TargetFailed, match="fake said b'hello' instead of JSON"):
        link.wait_until_ready(20.0)


def test_a_reply_without_times_is_a_failure(start: Start) -> None:
    link = link_to(start, "sh", "-c", "read line; echo '{}'; sleep 60")
    with pytest.raises(TargetFailed, match="did not answer properly"):
        link.ask((1,), 3, {})
