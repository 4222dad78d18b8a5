"""A peer that is up: its process, and the way to ask it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from outrider.bench.baselines.answer import Answer
from outrider.bench.baselines.dialects import DIALECTS, HttpLink
from outrider.bench.baselines.modes import Process, fill
from outrider.bench.baselines.peers import PEERS, WORKER, Peer
from outrider.bench.baselines.processes import PeerProcess, Watchdog, free_port
from outrider.bench.baselines.worker_link import WorkerLink
from outrider.types import TokenIds

__all__ = ["Engine", "Link", "Machine", "open_engine"]

_WORKERS: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Machine:
    """What a comparison runs on.

    Attributes:
        root: the folder of the peers' environments.
        values: of `$name` in commands and requests; see `Peer` and modes.toml.
        max_tokens: output budget of every prompt.
        start_s: longest time from start to readiness.
        answer_s: longest time without a sign of life in an answer.
        peers: the engines, by name.
    """

    root: Path
    values: Mapping[str, str]
    max_tokens: int
    start_s: float = 900.0
    answer_s: float = 600.0
    peers: Mapping[str, Peer] = field(default_factory=lambda: PEERS)


class Link(Protocol):
    """How a peer is asked."""

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return when it can be asked. Raises `TargetFailed` if that does not come in time."""
        ...

    def ask(self, prompt_ids: TokenIds, max_tokens: int, request: Mapping[str, Any]) -> Answer:
        """The greedy answer, under a mode's own fields. Raises `TargetFailed`."""
        ...


@dataclass(frozen=True, slots=True)
class Engine:
    """A started peer."""

    process: PeerProcess
    link: Link


def open_engine(name: str, kind: Process, machine: Machine, watchdog: Watchdog) -> Engine:
    """Start a process of a modes file. It is not ready yet.

    Raises:
        ConfigError: its command names something that this run does not have.
        TargetFailed: it cannot be started.
    """
    peer = machine.peers[kind.peer]
    port = free_port()
    values = {
        **machine.values,
        "folder": str((machine.root / peer.name).absolute()),
        "port": str(port),
        "workers": str(_WORKERS),
    }
    speaks = peer.dialect == WORKER
    process = PeerProcess(
        name,
        fill([*peer.command, *kind.arguments], values),
        environment=fill(peer.environment, values),
        log=machine.root / "logs" / f"{name}.log",
        guard=watchdog,
        speaks=speaks,
    )
    if speaks:
        return Engine(process, WorkerLink(process, timeout_s=machine.answer_s))
    dialect = DIALECTS[peer.dialect]
    return Engine(
        process,
        HttpLink(name, port, dialect, alive=lambda: process.alive, timeout_s=machine.answer_s),
    )
