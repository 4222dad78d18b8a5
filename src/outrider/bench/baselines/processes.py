"""Peers as processes of this machine: started, stopped for the time being, measured, ended.

Each is the leader of a process group of its own, so that its children share its fate. Only Linux
tells of processes as this needs it (/proc).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from outrider.bench.baselines import watchdog
from outrider.errors import TargetFailed

__all__ = ["PeerProcess", "Watchdog", "free_port"]

_GRACE_S: Final = 10.0
_STOP_S: Final = 10.0
_POLL_S: Final = 0.01
_TAIL_CHARS: Final = 1500
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    """A port of the loopback interface that nobody uses now, chosen by the system."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Watchdog:
    """Ends the peers even if this process is killed outright; use it as a context."""

    def __enter__(self) -> Watchdog:
        # A session of its own: Ctrl-C is for the harness, which then ends the peers in order.
        self._process = subprocess.Popen(  # noqa: S603 # our own file, with our own Python
            [sys.executable, "-I", "-S", watchdog.__file__],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        self._process.wait()

    def guard(self, group: int) -> None:
        self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}")

    @property
    def _input(self) -> IO[str]:
        assert self._process.stdin is not None  # noqa: S101 # it was opened as a pipe
        return self._process.stdin

    def _tell(self, line: str) -> None:
        self._input.write(f"{line}\n")
        self._input.flush()


class PeerProcess:
    """A running peer.

    Args:
        name: for messages.
        command: program and arguments.
        environment: added to this process's own.
        log: what it prints is appended here.
        guard: ends it if this process cannot.
        speaks: it talks over standard input and output; else both are closed to it.

    Raises:
        TargetFailed: it cannot be started.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        guard: Watchdog,
        speaks: bool = False,
    ) -> None:
        self.name = name
        self._log = log
        self._guard = guard
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._logged = output.tell()
            try:
                self._process = subprocess.Popen(  # noqa: S603 # the command is the user's modes
                    command,
                    stdin=subprocess.PIPE if speaks else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if speaks else output,
                    stderr=output,
                    env=os.environ | environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise TargetFailed(
                    f"{name} cannot be started ({command[0]}: {error.strerror}); build it first"
                ) from error
        self.group = self._process.pid
        self._ended = False
        guard.guard(self.group)

    @property
    def input(self) -> IO[bytes]:
        assert self._process.stdin is not None  # noqa: S101 # only asked of those that speak
        return self._process.stdin

    @property
    def output(self) -> IO[bytes]:
        assert self._process.stdout is not None  # noqa: S101 # only asked of those that speak
        return self._process.stdout

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ends_within(self, seconds: float) -> bool:
        """Whether it has ended, or does so soon: its pipes close a moment before it is seen to."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def freeze(self) -> None:
        """Stop it where it is, and return when no process of its group runs any more."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_S
        # D counts as standing still: what waits in the kernel, as a parent does for the program of
        # its stopped child, stops before it runs any code of its own.
        while any(state in "RS" for state in _states(self.group)):
            if time.monotonic() > deadline:
                raise TargetFailed(f"{self.name} goes on running after SIGSTOP")
            time.sleep(_POLL_S)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def resident_bytes(self) -> int:
        """Memory of its whole group; file pages that it maps (weights, mostly) count."""
        pages = 0
        for pid in _members(self.group):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * _PAGE

    def end(self) -> None:
        """Ask it to end, kill it if it does not, and leave nothing of its group behind.

        Once is enough: later calls do nothing.
        """
        if self._ended:
            return
        self._ended = True
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._guard.forget(self.group)

    def last_words(self) -> str:
        """The end of what it printed, on one line."""
        with self._log.open("rb") as log:
            log.seek(max(self._logged, log.seek(0, os.SEEK_END) - _TAIL_CHARS))
            lines = log.read().decode(errors="replace").splitlines()
        said = [" ".join(line.split()) for line in lines if line.strip()]
        return " / ".join(said[-4:])[-500:] or "it printed nothing"

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, number)


def _members(group: int) -> list[int]:
    return [pid for pid, (_, its_group) in _table().items() if its_group == group]


def _states(group: int) -> list[str]:
    return [state for state, its_group in _table().values() if its_group == group]


def _table() -> dict[int, tuple[str, int]]:
    """State letter and group of every process."""
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            # The name, in parentheses, may hold anything; what follows the last one is plain.
            state, _, group = stat.rpartition(")")[2].split()[:3]
            table[int(entry.name)] = (state, int(group))
    return table
