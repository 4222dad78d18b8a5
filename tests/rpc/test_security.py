"""Tokens and TLS at a gRPC server, as a client meets them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from outrider.config import PeerSettings
from outrider.errors import ConfigError
from outrider.rpc.security import BearerInterceptor, server_credentials
from tests.certificates import write_certificate

pytestmark = pytest.mark.anyio


async def _echo(request: bytes, _: object) -> bytes:
    return request


async def _echo_all(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


@asynccontextmanager
async def listening(
    *interceptors: grpc.aio.ServerInterceptor, credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[int]:
    server = grpc.aio.server(interceptors=interceptors)
    handlers = {
        "One": grpc.unary_unary_rpc_method_handler(_echo),
        "Many": grpc.stream_stream_rpc_method_handler(_echo_all),
        "Check": grpc.unary_unary_rpc_method_handler(_echo),
    }
    for service in ("echo.Echo", "grpc.health.v1.Health"):
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", "Bearer secret2"),),
        (("authorization", "secret"),),
        (("authorization", ""),),
        (("authorization", "Bearer secret"), ("authorization", "Bearer secret")),
        (("authorization-bin", b"Bearer secret"),),
    ],
)
async def test_a_call_without_the_token_is_refused_whatever_its_kind(metadata) -> None:
    async with (
        listening(BearerInterceptor("secret")) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/echo.Echo/One")(b"x", metadata=metadata)
        stream = channel.stream_stream("/echo.Echo/Many")(metadata=metadata)
        # Nothing was sent, and yet the answer comes.
        async with asyncio.timeout(10):
            assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        for told in (caught.value.details(), await stream.details()):
            assert "peers.token" in told
            assert "secret" not in told


async def test_the_token_opens_everything_and_health_asks_for_none() -> None:
    metadata = (("authorization", "Bearer secret"),)
    async with (
        listening(BearerInterceptor("secret")) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        assert await channel.unary_unary("/echo.Echo/One")(b"x", metadata=metadata) == b"x"
        stream = channel.stream_stream("/echo.Echo/Many")(metadata=metadata)
        await stream.write(b"y")
        assert await stream.read() == b"y"
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"z") == b"z"


async def test_a_certificate_makes_it_speak_tls(tmp_path) -> None:
    cert, key = write_certificate(tmp_path)
    credentials = server_credentials(PeerSettings(cert_file=cert, key_file=key))
    assert credentials is not None
    async with listening(credentials=credentials) as port:
        trusted = grpc.ssl_channel_credentials(cert.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted) as channel:
            assert await channel.unary_unary("/echo.Echo/One")(b"x") == b"x"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary("/echo.Echo/One")(b"x", timeout=10)


def test_without_a_certificate_there_is_no_tls() -> None:
    assert server_credentials(PeerSettings()) is None


def test_a_certificate_that_cannot_be_used_is_told_with_its_name(tmp_path) -> None:
    cert, _ = write_certificate(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    _, wrong_key = write_certificate(other)
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no PEM")
    missing = Path(tmp_path / "missing.pem")
    for pair in ((cert, wrong_key), (garbage, garbage), (missing, wrong_key)):
        peers = PeerSettings(cert_file=pair[0], key_file=pair[1])
        with pytest.raises(ConfigError, match=str(pair[0])):
            server_credentials(peers)
