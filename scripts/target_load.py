"""What a round costs over `Decode`: sessions through one stream against a table target.

    python scripts/target_load.py [--sessions 1000] [--at-once 64] [--rounds 32] [--draft 4]

Server and client are processes of their own on loopback. The table takes some 50 us a row, so what
is measured is the wire, mostly. Prints the time of a round (p50, p99), the time per round at full
load, and how much memory the server took on the way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc

from outrider.config import Settings
from outrider.rpc import target_inference_pb2 as pb
from outrider.rpc.target_inference_pb2_grpc import InferenceServiceStub
from outrider.servers.target import serve_target
from outrider.serving import event_loop_factory


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=32)
    parser.add_argument("--draft", type=int, default=4)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.run(_serve(arguments.serve))
        return
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.json"
        logits = {"": [0.0] * 8} | {
            str(i): [float(j == (i + 1) % 8) for j in range(8)] for i in range(8)
        }
        table.write_text(json.dumps({"vocab_size": 8, "order": 1, "logits": logits}))
        server = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(table)], stdout=subprocess.PIPE, text=True
        )
        try:
            address = server.stdout.readline().strip() if server.stdout else ""
            with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
                runner.run(_measure(address, server.pid, arguments))
        finally:
            server.terminate()
            server.wait()


async def _serve(table: str) -> None:
    settings = Settings(
        engine={"target": f"table:{table}", "max_sessions": 256},
        target_server={"port": 0, "status_port": 0, "drain_s": 0},
    )
    await serve_target(settings, on_ready=lambda address, _: print(address, flush=True))


async def _measure(address: str, pid: int, arguments: argparse.Namespace) -> None:
    async with grpc.aio.insecure_channel(address.removeprefix("grpc://")) as channel:
        client = _Client(InferenceServiceStub(channel).Decode())
        for at_once in (1, arguments.at_once):
            sessions = max(at_once, 8)
            await _load(client, sessions, at_once, arguments.rounds, arguments.draft)  # warm
            before = _memory(pid)
            sessions = 32 if at_once == 1 else arguments.sessions
            started, cpu = time.perf_counter(), _cpu(pid)
            times = await _load(client, sessions, at_once, arguments.rounds, arguments.draft)
            elapsed = time.perf_counter() - started
            cuts = statistics.quantiles(times, n=100)
            print(
                f"{sessions} sessions, {at_once} at once, {len(times)} rounds, "
                f"{arguments.draft} tokens drafted: "
                f"p50 {cuts[49] * 1e6:.0f} us, p99 {cuts[98] * 1e6:.0f} us "
                f"({cuts[98] / cuts[49]:.2f} times), max {max(times) * 1e6:.0f} us; "
                f"{elapsed / len(times) * 1e6:.0f} us a round, of them "
                f"{(_cpu(pid) - cpu) / len(times) * 1e6:.0f} us of the server's processor; "
                f"memory {(_memory(pid) - before) / 1024:+.0f} KiB"
            )
        client.close()


async def _load(
    client: _Client, sessions: int, at_once: int, rounds: int, draft_length: int
) -> list[float]:
    gate = asyncio.Semaphore(at_once)
    times: list[float] = []

    async def one(number: int) -> None:
        async with gate:
            await client.ask(_open(number, (draft_length + 1) * rounds))
            position = 0
            for round_id in range(1, rounds + 1):
                draft = [(position + 1 + index) % 8 for index in range(draft_length)]
                advance = pb.Advance(round_id=round_id, position=position, token_ids=draft)
                started = time.perf_counter()
                events = await client.ask(pb.Action(session=number, advance=advance))
                times.append(time.perf_counter() - started)
                position += sum(len(event.verified.token_ids) for event in events)
            if position != (draft_length + 1) * rounds:
                raise RuntimeError(f"session {number} came to {position} tokens")
            await client.ask(pb.Action(session=number, release=pb.Release()))

    await asyncio.gather(*(one(number) for number in range(1, sessions + 1)))
    return times


def _open(number: int, max_tokens: int) -> pb.Action:
    sampling = pb.Sampling(top_p=1.0, repetition_penalty=1.0, max_tokens=max_tokens)
    return pb.Action(session=number, open=pb.Open(prompt_ids=[0], sampling=sampling))


class _Client:
    """One stream; what is ready at once shares a message, as in the server."""

    def __init__(
        self, call: grpc.aio.StreamStreamCall[pb.DecodeRequest, pb.DecodeResponse]
    ) -> None:
        self._call = call
        self._waiting: dict[int, tuple[asyncio.Future[list[pb.Event]], list[pb.Event]]] = {}
        self._actions: list[pb.Action] = []
        self._ready = asyncio.Event()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    async def ask(self, action: pb.Action) -> list[pb.Event]:
        future: asyncio.Future[list[pb.Event]] = asyncio.get_running_loop().create_future()
        self._waiting[action.session] = future, []
        self._actions.append(action)
        self._ready.set()
        return await future

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._call.cancel()

    async def _write(self) -> None:
        while True:
            await self._ready.wait()
            await asyncio.sleep(0)
            self._ready.clear()
            actions, self._actions = self._actions, []
            await self._call.write(pb.DecodeRequest(actions=actions))

    async def _read(self) -> None:
        while (response := await self._call.read()) is not grpc.aio.EOF:
            for event in response.events:
                future, events = self._waiting[event.session]
                events.append(event)
                if event.WhichOneof("kind") != "verified":
                    if event.HasField("failed"):
                        raise RuntimeError(event.failed.message)
                    future.set_result(events)


def _memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
