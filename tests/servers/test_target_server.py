"""A target server as a whole: the way down, its status, its limits, who may call."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from outrider.config import Settings
from outrider.errors import ConfigError
from outrider.models import TableModel
from outrider.rpc import target_inference_pb2 as pb
from outrider.rpc.target_inference_pb2_grpc import InferenceServiceStub
from outrider.servers import target as target_module
from outrider.targets import TableTarget
from outrider.types import TargetInfo, Verification
from tests.certificates import write_certificate

from .target_serving import (
    LIMIT_S,
    LONG,
    Client,
    advance,
    cancel,
    counted,
    kinds,
    open_files,
    opening,
    release,
    serving,
    until,
)

pytestmark = pytest.mark.anyio


async def test_while_it_drains_nothing_opens_and_what_runs_may_end(target_server) -> None:
    async with (
        target_server(server={"drain_s": LIMIT_S}) as server,
        server.client() as client,
        server.channel() as channel,
        httpx.AsyncClient(base_url=server.status) as http,
    ):
        await client.open(1)
        assert (await http.get("/ready")).status_code == 200
        server.stop.set()
        async with asyncio.timeout(LIMIT_S):
            while (await http.get("/ready")).status_code != 503:  # noqa: ASYNC110 # likewise
                await asyncio.sleep(0.01)
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "target_inference.InferenceService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        refused = await client.open(2)
        assert refused.failed.reason == pb.DRAINING
        assert kinds(await client.round(advance(run=2)))[-1] == "ended"
        assert not server.task.done()
        await client.send(release())
        assert kinds([await client.event()]) == ["released"]
        async with asyncio.timeout(LIMIT_S):
            await server.task
        assert (await client.call.code()).name == "UNAVAILABLE"


async def test_what_outlasts_the_drain_is_cut_and_told_to_go_elsewhere(target_server) -> None:
    table = {"context_length": 100_000}
    long = pb.Sampling(top_p=1.0, repetition_penalty=1.0, max_tokens=99_000)
    async with (
        target_server(table=table, server={"drain_s": 0.2}) as server,
        server.client() as client,
    ):
        await client.open(1, sampling=long)
        await client.send(advance(run=98_000))
        await client.event()
        server.stop.set()
        events = await client.rest()
        assert events[-1].failed.reason == pb.DRAINING
        assert events[-1].failed.round_id == 1
        async with asyncio.timeout(LIMIT_S):
            await server.task


async def test_the_status_tells_health_version_and_counts(target_server) -> None:
    async with (
        target_server() as server,
        server.client() as client,
        httpx.AsyncClient(base_url=server.status) as http,
    ):
        await client.open(1)
        await client.round(advance(draft=(0, 1, 2)))
        assert (await http.get("/health")).json() == {"status": "ok"}
        assert "version" in (await http.get("/version")).json()
        assert "GET" in (await http.get("/")).text
        assert (await http.get("/nothing")).status_code == 404
        for name, value in {
            "outrider_target_sessions": 1,
            "outrider_target_slots": 32,
            "outrider_target_rounds_total": 1,
            "outrider_target_streams": 1,
            "outrider_target_step_seconds_count": 1,
        }.items():
            assert await counted(server, name) == value
        judged = [
            await counted(server, f"speculative_decoding_{kind}_tokens_total")
            for kind in ("accepted", "rejected")
        ]
        assert sum(judged) == 3


async def test_two_servers_cannot_share_a_port(target_server, write_table) -> None:
    async with target_server() as server:
        port = int(server.address.rpartition(":")[2])
        settings = Settings(
            engine={"target": f"table:{write_table()}"},
            target_server={"port": port, "status_port": 0},
        )
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            async with serving(settings):
                pass


async def test_it_serves_no_target_that_another_server_runs() -> None:
    settings = Settings(engine={"target": "grpc://127.0.0.1:1"})
    with pytest.raises(ConfigError, match=r"'grpc://127\.0\.0\.1:1', and a target server runs a"):
        async with serving(settings):
            pass


async def test_without_a_token_it_listens_on_loopback_alone(write_table) -> None:
    settings = Settings(
        engine={"target": f"table:{write_table()}"},
        target_server={"host": "0.0.0.0", "port": 0, "status_port": 0},  # noqa: S104 # refused
    )
    with pytest.raises(ConfigError, match=r"target_server\.host is '0\.0\.0\.0'.*peers\.token"):
        async with serving(settings):
            pass


class Gated(TableTarget):
    """A table whose session 1 answers only once the gate is open."""

    gate: asyncio.Event
    tokenizer_json: str | None = None

    async def describe(self) -> TargetInfo:
        return replace(await super().describe(), tokenizer_json=self.tokenizer_json)

    async def advance(self, session_id, *asked) -> AsyncGenerator[Verification]:
        if int(session_id, 16) == 1:
            await self.gate.wait()
        async for answer in super().advance(session_id, *asked):
            yield answer


@pytest.fixture
def gated(write_table, monkeypatch) -> Gated:
    """What servers of this test run, whatever they are configured to."""
    target = Gated(TableModel.load(write_table("gated")), model_id="gated")
    target.gate = asyncio.Event()
    monkeypatch.setattr(target_module, "create_target", lambda *_, **__: (target, None))
    return target


async def test_a_session_that_waits_holds_up_no_other(target_server, gated) -> None:
    async with target_server() as server, server.client() as client:
        await client.send(opening(1), advance(1), opening(2), advance(2, run=3))
        events = [await client.event() for _ in range(7)]
        assert kinds([event for event in events if event.session == 1]) == ["opened"]
        assert kinds([event for event in events if event.session == 2])[-1] == "ended"
        gated.gate.set()
        assert [event.session for event in await client.rest()] == [1, 1]


async def test_a_failing_target_fails_the_round_and_not_the_stream(target_server, gated) -> None:
    gated.gate = None  # type: ignore[assignment]  # whoever waits for it fails
    async with target_server() as server, server.client() as client:
        await client.send(opening(1), advance(1))
        opened, failed = await client.event(), await client.event()
        assert opened.WhichOneof("kind") == "opened"
        assert failed.failed.reason == pb.TARGET_FAILED
        assert "its log says why" in failed.failed.message
        assert kinds([await client.open(2)]) == ["opened"]


async def test_a_description_larger_than_a_message_is_told_at_the_start(
    target_server, gated
) -> None:
    gated.tokenizer_json = "x" * 70_000
    with pytest.raises(ConfigError, match=r"max_message_bytes is 65536.*raise it"):
        async with target_server(server={"max_message_bytes": 65_536}):
            pass


async def test_with_token_and_certificate_it_is_reached_by_both_and_nothing_less(
    target_server, tmp_path
) -> None:
    cert, key = write_certificate(tmp_path)
    peers = {"token": "secret", "cert_file": cert, "key_file": key}
    async with target_server(peers=peers) as server:
        assert server.address.startswith("grpcs://")
        trusted = grpc.ssl_channel_credentials(cert.read_bytes())
        shown = server.address.removeprefix("grpcs://")
        async with grpc.aio.secure_channel(shown, trusted) as channel:
            stub = InferenceServiceStub(channel)
            refused = stub.Decode()
            assert await refused.code() is grpc.StatusCode.UNAUTHENTICATED
            client = Client(stub.Decode(metadata=(("authorization", "Bearer secret"),)))
            assert kinds([await client.open(1)]) == ["opened"]
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            client.call.cancel()
        context = ssl.create_default_context(cafile=cert)
        async with httpx.AsyncClient(base_url=server.status, verify=context) as http:
            assert (await http.get("/ready")).json() == {"status": "ready"}


async def test_it_reflects_its_services(target_server) -> None:
    async with target_server() as server, server.channel() as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {entry.name for entry in (await call.read()).list_services_response.service}
        call.cancel()
    assert {"target_inference.InferenceService", "grpc.health.v1.Health"} <= names


async def test_bytes_that_are_no_message_end_the_stream_and_leave_the_others(
    target_server,
) -> None:
    limits = {"max_message_bytes": 2**20}
    async with (
        target_server(server=limits) as server,
        server.client() as client,
        server.channel() as channel,
    ):
        await client.open(1)
        raw = channel.stream_stream("/target_inference.InferenceService/Decode")()
        await raw.write(b"\xff\xff\xff\xff")
        async with asyncio.timeout(LIMIT_S):
            assert await raw.code() is grpc.StatusCode.INVALID_ARGUMENT
        huge = channel.stream_stream("/target_inference.InferenceService/Decode")()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await huge.write(bytes(2**21))
        async with asyncio.timeout(LIMIT_S):
            assert await huge.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert kinds(await client.round(advance(run=1)))[-1] == "ended"
        await until(server, "outrider_target_streams", 1)


async def test_after_any_sequence_nothing_is_left(target_server) -> None:
    async with target_server(server={"lease_s": 0.05}) as server:
        async with server.client() as client:
            await client.open(1000)
        await until(server, "outrider_target_sessions", 0)
        before, files = len(asyncio.all_tasks()), open_files()
        async with AsyncExitStack() as stack:
            for number in range(1, 9):
                client = await stack.enter_async_context(server.client())
                await client.open(number, sampling=LONG)
                await client.send(advance(number, run=800), opening(number + 50))
                if number % 2:
                    await client.send(cancel(1, number), opening(number, epoch=1), release(number))
        await until(server, "outrider_target_sessions", 0)
        await until(server, "outrider_target_streams", 0)
        async with asyncio.timeout(LIMIT_S):
            # There is no event for it.
            while len(asyncio.all_tasks()) > before or open_files() > files:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
