"""What the tests of the comparison share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider.bench.baselines.processes import PeerProcess, Watchdog


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    with Watchdog() as watchdog:
        yield watchdog


@pytest.fixture
def start(tmp_path: Path, watchdog: Watchdog) -> Iterator[Callable[..., PeerProcess]]:
    """Starts processes that are ended with the test."""
    started: list[PeerProcess] = []

    def start(
        *command: str, speaks: bool = False, environment: dict[str, str] | None = None
    ) -> PeerProcess:
        process = PeerProcess(
            "fake",
            command,
            environment=environment or {},
            log=tmp_path / "fake.log",
            guard=watchdog,
            speaks=speaks,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()
