"""Target servers in this process: real ones over a table, and scripted ones for every fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from outrider.config import PeerSettings, TargetServerSettings
from outrider.models import TableModel
from outrider.rpc import target_inference_pb2 as pb
from outrider.rpc.channel import Address, parse_addresses
from outrider.servers.listener import Listener
from outrider.servers.target_checks import Checks
from outrider.servers.target_metrics import TargetMetrics
from outrider.servers.target_service import TargetService
from outrider.servers.target_sessions import Sessions
from outrider.targets import OpenRequest, TableTarget
from outrider.types import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
SEEDED = SamplingParams(temperature=1.0, seed=11, max_tokens=40)


def request(session_id: str = "s", sampling: SamplingParams = GREEDY, **other) -> OpenRequest:
    defaults = {"epoch": 0, "prompt_ids": (0,), "output_ids": (), "noise_key": 1}
    return OpenRequest(session_id=session_id, sampling=sampling, **(defaults | other))


class SlowTable(TableTarget):
    """A table whose steps take a while, so that there is a middle of a round."""

    step_s = 0.0

    async def advance(self, *args):
        async for answer in super().advance(*args):
            yield answer
            await asyncio.sleep(self.step_s)


class RealServer:
    """A server over a table that can be killed, and started again on its port.

    Args:
        file: the table.
        step_s: seconds between answers.
        max_sessions: that fit.
        peers: token and certificate.
    """

    def __init__(
        self,
        file: Path,
        *,
        step_s: float = 0.0,
        max_sessions: int = 8,
        peers: PeerSettings | None = None,
    ) -> None:
        self._file = file
        self._step_s = step_s
        self._max_sessions = max_sessions
        self._peers = peers or PeerSettings()
        self._port = 0
        self._listener: Listener | None = None

    async def start(self) -> None:
        """Listen; on the same port as before, if it was killed."""
        self.table = SlowTable(
            TableModel.load(self._file), model_id="table", max_sessions=self._max_sessions
        )
        self.table.step_s = self._step_s
        checks = Checks(await self.table.describe(), None, 2**24)
        self.sessions = Sessions(self.table, checks, TargetMetrics(self.table), lease_s=0.3)
        self.service = TargetService(
            self.sessions, None, concurrency_limit=16, max_message_bytes=2**24
        )
        settings = TargetServerSettings(port=self._port)
        self._listener = Listener(settings, self._peers)
        (self.address,) = parse_addresses(self._listener.address)
        self._port = self.address.port
        await self._listener.start(self.service)

    async def kill(self) -> None:
        """End every connection and forget every session, as a killed process would."""
        if self._listener is not None:
            await self._listener._server.stop(None)
            self._listener = None

    async def drain(self) -> None:
        """Take nothing new, as behind SIGTERM."""
        self.sessions.draining = True
        await self._listener.refuse()


@asynccontextmanager
async def serving(file: Path, **options: Any) -> AsyncIterator[RealServer]:
    server = RealServer(file, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


DESCRIBED = pb.DescribeResponse(
    protocol_version=1,
    model_id="scripted",
    model_hash="h",
    vocab_size=5,
    vocab_fingerprint="f",
    context_length=1000,
    max_sessions=4,
    capabilities=pb.Capabilities(
        sampling=True, seeds=True, batch_invariant=True, max_draft_tokens=16
    ),
)

Answer = Callable[[pb.Action, "Scripted"], Awaitable[list[pb.Event] | bytes | None]]


class Scripted:
    """A server that answers whatever a script says.

    Args:
        answer: from an action to events; to bytes, sent as they are; or to None, which ends the
            stream.
        described: what it says of itself.
    """

    def __init__(self, answer: Answer, described: pb.DescribeResponse = DESCRIBED) -> None:
        self.answer = answer
        self.described = described
        self.actions: list[pb.Action] = []
        self.messages = 0
        self.streams = 0

    async def Describe(self, message, context):  # noqa: N802 # gRPC's name
        return self.described

    async def Decode(self, requests, context):  # noqa: N802 # gRPC's name
        self.streams += 1
        async for message in requests:
            self.messages += 1
            for action in pb.DecodeRequest.FromString(message).actions:
                self.actions.append(action)
                said = await self.answer(action, self)
                if said is None:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the script ends here")
                if isinstance(said, list):
                    said = pb.DecodeResponse(events=said).SerializeToString()
                await context.write(said)

    def kinds(self) -> list[str]:
        """Of the actions that came."""
        return [action.WhichOneof("kind") for action in self.actions]


@asynccontextmanager
async def scripted(
    answer: Answer,
    described: pb.DescribeResponse = DESCRIBED,
    make: type[Scripted] = Scripted,
) -> AsyncIterator[tuple[Address, Scripted]]:
    """Serve a script."""
    script = make(answer, described)
    server = grpc.aio.server(options=[("grpc.http2.min_recv_ping_interval_without_data_ms", 1000)])
    raw = grpc.method_handlers_generic_handler(
        "target_inference.InferenceService",
        {
            "Describe": grpc.unary_unary_rpc_method_handler(
                script.Describe, response_serializer=pb.DescribeResponse.SerializeToString
            ),
            # Serialized messages, so that a script can send what is none.
            "Decode": grpc.stream_stream_rpc_method_handler(script.Decode),
        },
    )
    server.add_generic_rpc_handlers([raw])
    checker = health.aio.HealthServicer()
    await checker.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Address("127.0.0.1", port), script
    finally:
        await server.stop(None)
