"""Peers as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.bench.baselines.processes import PeerProcess, Watchdog
from outrider.errors import TargetFailed

Start = Callable[..., PeerProcess]

# A shell that starts a child which writes on and on.
BUSY = ("sh", "-c", '(while :; do echo x >> "$1"; sleep 0.005; done) & wait', "sh")

OWNER = """
import sys, time
from pathlib import Path
from outrider.bench.baselines.processes import PeerProcess, Watchdog
with Watchdog() as dog:
    process = PeerProcess("x", sys.argv[2:], environment={}, log=Path(sys.argv[1]), guard=dog)
    process.freeze()
    print(process.group, flush=True)
    time.sleep(60)
"""


def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_frozen_peer_and_its_children_stand_still_until_it_is_thawed(
    start: Start, tmp_path: Path
) -> None:
    written = tmp_path / "written"
    process = start(*BUSY, str(written))
    until(lambda: written.exists() and written.stat().st_size > 10)
    process.freeze()
    before = written.stat().st_size
    time.sleep(0.1)
    assert written.stat().st_size == before
    process.thaw()
    until(lambda: written.stat().st_size > before)


def test_ending_a_frozen_peer_leaves_none_of_its_children(start: Start, tmp_path: Path) -> None:
    process = start(*BUSY, str(tmp_path / "written"))
    process.freeze()
    process.end()
    assert not process.alive
    until(lambda: gone(process.group))
    process.end()  # a second time does nothing


def test_a_peer_that_ignores_the_request_to_end_is_killed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.bench.baselines.processes._GRACE_S", 0.2)
    process = start("sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done")
    until(lambda: "up" in process.last_words())
    process.end()
    assert not process.alive


def test_a_peer_that_is_about_to_end_is_known_to(start: Start) -> None:
    assert start("sh", "-c", "sleep 0.1").ends_within(10.0)
    assert not start("sleep", "60").ends_within(0.05)


def test_memory_is_that_of_the_whole_group(start: Start) -> None:
    hold = "held = bytearray(40_000_000); print('held', flush=True); import time; time.sleep(60)"
    process = start("sh", "-c", '"$0" -c "$1" & wait', sys.executable, hold)
    until(lambda: "held" in process.last_words())
    assert process.resident_bytes() > 40_000_000


def test_a_command_that_cannot_be_started_says_so(start: Start) -> None:
    with pytest.raises(TargetFailed, match="/no/such/engine: No such file"):
        start("/no/such/engine")


def test_last_words_are_those_of_this_start_alone(start: Start) -> None:
    start("sh", "-c", "echo first").end()
    process = start("sh", "-c", "echo  second; echo third >&2")
    until(lambda: "third" in process.last_words())
    assert process.last_words() == "second / third"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_peers_end_with_a_harness_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "log"), "sleep", "60"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        group = int(owner.stdout.readline())
        assert not gone(group)
        owner.send_signal(number)
    until(lambda: gone(group))


def test_the_watchdog_lets_go_of_what_was_ended_in_order(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    with Watchdog() as watchdog:
        watchdog.guard(other.pid)
        watchdog.forget(other.pid)
    assert other.poll() is None
    other.kill()
    other.wait()
