"""A split deployment of real processes over a tiny table, as tests start and disturb it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.proxy import Proxy

_ADDRESS = re.compile(r"(?:grpcs?|https?)://[^\s,;)]+")
_START_S = 60


@dataclass
class Part:
    """One process: `outrider serve ...`, ready for calls.

    Attributes:
        addresses: those that it told when it was ready, in order.
        log: lines of its standard error so far.
    """

    process: subprocess.Popen[str]
    addresses: list[str]
    log: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def status(self) -> str:
        """Where its /metrics are."""
        return next(address for address in reversed(self.addresses) if "http" in address)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=30)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def metric(self, name: str) -> float:
        """Sum over the labels of a metric; 0 if there is none."""
        text = httpx.get(f"{self.status}/metrics", timeout=30).text
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M)
        return sum(map(float, found))

    def descriptors(self) -> int:
        """File descriptors that it holds."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@contextmanager
def part(*arguments: str, env: dict[str, str] | None = None) -> Iterator[Part]:
    """`outrider ARGUMENTS`, once it is ready; killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "outrider", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Against a table, whose steps take microseconds, a controller that counts costs drafts
        # nothing.
        env=os.environ | {"OUTRIDER_SPECULATION__CONTROLLER": "fixed"} | (env or {}),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    log: list[str] = []
    stderr = process.stderr
    reader = threading.Thread(target=lambda: log.extend(stderr), daemon=True)
    reader.start()
    try:
        first = process.stdout.readline()
        assert first, f"{arguments} ended with {process.wait()}: {''.join(log)}"
        started = Part(process, _ADDRESS.findall(first), log)
        drain = threading.Thread(target=process.stdout.read, daemon=True)
        drain.start()
        yield started
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait(timeout=30)
        reader.join(timeout=10)
        drain.join(timeout=10)
        process.stdout.close()
        stderr.close()


@contextmanager
def target(file: Path, *arguments: str, port: int = 0, **env: str) -> Iterator[Part]:
    """A target server over a table."""
    with part(
        "serve",
        "target",
        "--target",
        f"table:{file}",
        "--port",
        str(port),
        "--status-port",
        "0",
        *arguments,
        env=env,
    ) as started:
        yield started


@contextmanager
def draft(file: Path, *arguments: str, port: int = 0, **env: str) -> Iterator[Part]:
    """A draft server over a table."""
    with part(
        "serve", "draft", "--model", f"table:{file}", "--port", str(port), *arguments, env=env
    ) as started:
        yield started


@contextmanager
def gateway(
    targets: Sequence[str], *drafts: str, settings: dict[str, str] | None = None
) -> Iterator[Part]:
    """A gateway over target servers, with drafters."""
    flags = [flag for spec in drafts or ("none",) for flag in ("--draft", spec)]
    with part(
        "serve", "gateway", "--target", ",".join(targets), "--port", "0", *flags, env=settings
    ) as started:
        yield started


@dataclass
class Answer:
    """What a streamed completion came to; `error` is the text of an error event."""

    text: str = ""
    finish_reason: str | None = None
    error: str | None = None
    status: int = 200
    pieces: int = 0


def complete(
    server: Part,
    *,
    max_tokens: int,
    on_piece: Callable[[int], None] | None = None,
    **options: Any,
) -> Answer:
    """Stream a completion of `0 1`; `on_piece` is called with the number of pieces so far."""
    body = {
        "model": "target",
        "prompt": [0, 1],
        "max_tokens": max_tokens,
        "stream": True,
        "temperature": 0,
    } | options
    answer = Answer()
    with httpx.stream("POST", f"{server.address}/v1/completions", json=body, timeout=120) as reply:
        answer.status = reply.status_code
        if reply.status_code != 200:
            answer.error = reply.read().decode()
            return answer
        for line in reply.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                answer.error = event["error"]["message"]
                continue
            for choice in event["choices"]:
                answer.text += choice["text"]
                answer.finish_reason = choice["finish_reason"] or answer.finish_reason
            answer.pieces += 1
            if on_piece is not None:
                on_piece(answer.pieces)
    return answer


def settles(check: Callable[[], bool], *, within_s: float = 20.0) -> bool:
    """Whether `check` becomes true in time."""
    deadline = time.monotonic() + within_s
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


class Wire:
    """A network between two parts that can be disturbed from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, proxy: Proxy) -> None:
        self._loop = loop
        self._proxy = proxy

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self._proxy.port}"

    @property
    def connections(self) -> int:
        """Made so far."""
        return self._proxy.connections

    def cut(self) -> None:
        """Reset every connection."""
        self._loop.call_soon_threadsafe(self._proxy.cut)

    def stall(self) -> None:
        """Forward nothing more, and tell neither side."""
        self._loop.call_soon_threadsafe(self._proxy.stall)

    def resume(self) -> None:
        """Forward again."""
        self._loop.call_soon_threadsafe(self._proxy.resume)


@contextmanager
def wire(port: int, *, delay_s: float = 0.0) -> Iterator[Wire]:
    """A proxy in front of a port, on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    proxy = Proxy(port, delay_s=delay_s)
    try:
        asyncio.run_coroutine_threadsafe(proxy.__aenter__(), loop).result(timeout=10)
        yield Wire(loop, proxy)
        asyncio.run_coroutine_threadsafe(proxy.__aexit__(None, None, None), loop).result(timeout=10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()


@dataclass
class Deployment:
    """A gateway over `targets`, and over a draft server if there is one.

    Attributes:
        wires: what lies between the gateway and each target, if anything does.
    """

    front: Part
    targets: list[Part]
    drafts: Part | None = None
    wires: list[Wire] = field(default_factory=list)

    @property
    def behind(self) -> Part:
        """The only target."""
        (only,) = self.targets
        return only

    @property
    def busy(self) -> Part:
        """The target that holds a session."""
        return next(each for each in self.targets if each.metric("outrider_target_sessions"))

    @property
    def parts(self) -> list[Part]:
        return [self.front, *self.targets, *([self.drafts] if self.drafts else [])]

    def all_given_back(self) -> bool:
        """Whether what still runs comes to hold nothing."""
        alive = [each for each in self.targets if each.process.poll() is None]
        return settles(
            lambda: (
                self.front.metric("outrider_running") == 0
                and all(each.metric("outrider_target_sessions") == 0 for each in alive)
            )
        )


@contextmanager
def deploy(
    table: Path,
    *drafters: str,
    targets: int = 1,
    draft_table: Path | None = None,
    delay_s: float | None = None,
    settings: dict[str, str] | None = None,
) -> Iterator[Deployment]:
    """Start it all, one after the other; the draft server, if any, drafts by default.

    With a `delay_s` there is a wire in front of each target.
    """
    with ExitStack() as stack:
        behind = [stack.enter_context(target(table, **(settings or {}))) for _ in range(targets)]
        drafts = stack.enter_context(draft(draft_table)) if draft_table else None
        names = ([drafts.address] if drafts else []) + list(drafters)
        wires = []
        if delay_s is not None:
            wires = [stack.enter_context(wire(each.port, delay_s=delay_s)) for each in behind]
        addresses = [each.address for each in wires or behind]
        front = stack.enter_context(gateway(addresses, *names, settings=settings))
        yield Deployment(front, behind, drafts, wires)
