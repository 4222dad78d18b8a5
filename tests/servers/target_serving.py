"""A target server in this process, and the raw gRPC client that tests talk to it with."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import httpx

from outrider.config import Settings
from outrider.models import TableModel
from outrider.rpc import target_inference_pb2 as pb
from outrider.rpc.target_inference_pb2_grpc import InferenceServiceStub
from outrider.servers.target import serve_target
from outrider.targets import OpenRequest, TableTarget
from outrider.types import NO_DRAFT, SamplingParams

LIMIT_S = 10.0
"""Nothing here takes nearly as long."""

GREEDY = pb.Sampling(top_p=1.0, repetition_penalty=1.0, max_tokens=20)


@dataclass
class Server:
    """A running server."""

    address: str
    status: str
    stop: asyncio.Event
    task: asyncio.Task[None]

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.address.removeprefix("grpc://"))

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[InferenceServiceStub]:
        async with self.channel() as channel:
            yield InferenceServiceStub(channel)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with self.channel() as channel:
            client = Client(InferenceServiceStub(channel).Decode())
            try:
                yield client
            finally:
                client.call.cancel()


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Server]:
    """Serve until the block ends, and let errors of the server show."""
    ready: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    task = asyncio.create_task(
        serve_target(settings, on_ready=lambda *told: ready.set_result(told), stop=stop)
    )
    await asyncio.wait([ready, task], return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT_S)
    if task.done():
        await task
    address, status = ready.result()
    try:
        yield Server(address, status, stop, task)
    finally:
        stop.set()
        async with asyncio.timeout(LIMIT_S):
            await task


class Client:
    """One `Decode` stream."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.messages = 0
        self._events: list[pb.Event] = []

    async def send(self, *actions: pb.Action) -> None:
        await self.call.write(pb.DecodeRequest(actions=actions))

    async def event(self) -> pb.Event:
        """The next event."""
        async with asyncio.timeout(LIMIT_S):
            while not self._events:
                response = await self.call.read()
                assert response is not grpc.aio.EOF, "the stream has ended"
                self.messages += 1
                self._events = list(response.events)
        return self._events.pop(0)

    async def open(self, session: int = 1, **fields: Any) -> pb.Event:
        await self.send(opening(session, **fields))
        return await self.event()

    async def round(self, action: pb.Action) -> list[pb.Event]:
        """The events of one round, of the only session that runs."""
        await self.send(action)
        return await self.rest()

    async def rest(self) -> list[pb.Event]:
        """Events up to and with the end of a round."""
        events = [await self.event()]
        while events[-1].WhichOneof("kind") not in ("ended", "failed"):
            events.append(await self.event())
        return events


def opening(session: int = 1, **fields: Any) -> pb.Action:
    defaults: dict[str, Any] = {"prompt_ids": [0], "noise_key": 7, "sampling": GREEDY}
    return pb.Action(session=session, open=pb.Open(**(defaults | fields)))


def advance(
    session: int = 1,
    *,
    round_id: int = 1,
    position: int = 0,
    draft: tuple[int, ...] = (),
    **other: Any,
) -> pb.Action:
    return pb.Action(
        session=session,
        advance=pb.Advance(round_id=round_id, position=position, token_ids=draft, **other),
    )


def release(session: int = 1) -> pb.Action:
    return pb.Action(session=session, release=pb.Release())


def cancel(round_id: int, session: int = 1) -> pb.Action:
    return pb.Action(session=session, cancel=pb.Cancel(round_id=round_id))


def kinds(events: list[pb.Event]) -> list[str]:
    return [event.WhichOneof("kind") for event in events]


def tokens(events: list[pb.Event]) -> list[int]:
    return [token for event in events for token in event.verified.token_ids]


LONG = pb.Sampling(top_p=1.0, repetition_penalty=1.0, max_tokens=900)


async def reference(write_table, sampling: SamplingParams, count: int) -> list[int]:
    """What the same table says in this process, decoded plainly."""
    target = TableTarget(TableModel.load(write_table("target", context_length=1024)), model_id="t")
    request = OpenRequest("s", 0, (0,), (), sampling, noise_key=7)
    await target.open(request)
    return [
        token
        async for answer in target.advance("s", 1, 0, NO_DRAFT, count - 1)
        for token in answer.token_ids
    ]


async def counted(server, name: str) -> float:
    """One value of /metrics."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{server.status}/metrics")).text
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name)
    )


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 # counted, not looked at


async def until(server, name: str, value: float) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await counted(server, name) != value:  # noqa: ASYNC110 # it is in HTTP
            await asyncio.sleep(0.02)
