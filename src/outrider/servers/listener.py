"""The gRPC side of a target server: its port, its limits, its health."""

from __future__ import annotations

import ipaddress
from typing import Final

import grpc
from grpc_health.v1 import (  # type: ignore[import-untyped]  # it comes without types
    health,
    health_pb2,
    health_pb2_grpc,
)
from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]  # likewise
    reflection,
)

from outrider.config import PeerSettings, TargetServerSettings
from outrider.errors import ConfigError
from outrider.rpc.security import BearerInterceptor, server_credentials
from outrider.servers.target_service import SERVICE, TargetService
from outrider.serving import bind

__all__ = ["Listener"]

_LAST_WRITES_S: Final = 2.0
"""Seconds that gateways get to take the last events."""

_NAMES: Final = ("", SERVICE)


class Listener:
    """Listens at once, and serves from `start` on. Make it on a running event loop.

    Args:
        settings: where to listen, and limits.
        peers: who may call, and the certificate.

    Attributes:
        address: for gateways, such as grpc://127.0.0.1:8002.

    Raises:
        ConfigError: the address or the certificate cannot be used.
    """

    def __init__(self, settings: TargetServerSettings, peers: PeerSettings) -> None:
        self._health = health.aio.HealthServicer()
        credentials = server_credentials(peers)
        token = peers.token.get_secret_value()
        # gRPC names no reason when it cannot listen; a socket of our own does.
        with bind(settings.host, settings.port) as probe:
            host = ipaddress.ip_address(probe.getsockname()[0])
        self._server = grpc.aio.server(
            interceptors=[BearerInterceptor(token)] if token else [],
            options=_options(settings.max_message_bytes),
        )
        shown = f"[{host}]" if host.version == 6 else str(host)
        try:
            if credentials is None:
                port = self._server.add_insecure_port(f"{shown}:{settings.port}")
            else:
                port = self._server.add_secure_port(f"{shown}:{settings.port}", credentials)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on port {settings.port} of {settings.host} ({error}); choose "
                "another with --port"
            ) from None
        self.address = f"{'grpc' if credentials is None else 'grpcs'}://{shown}:{port}"

    async def start(self, service: TargetService) -> None:
        """Take calls."""
        self._server.add_generic_rpc_handlers([service.handlers()])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (
                SERVICE,
                health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
                reflection.SERVICE_NAME,
            ),
            self._server,
        )
        await self._tell(health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def refuse(self) -> None:
        """Tell whoever asks for the health that it serves no more."""
        await self._tell(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def close(self) -> None:
        """Take no more calls; those under way get a moment to end."""
        await self._server.stop(_LAST_WRITES_S)

    async def _tell(self, status: int) -> None:
        for name in _NAMES:
            await self._health.set(name, status)


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # Two servers on one port would share its connections in silence.
        ("grpc.so_reuseport", 0),
        # Gateways that are gone are noticed though they sent nothing; theirs may ping as well.
        ("grpc.keepalive_time_ms", 15_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),  # a minute otherwise, whatever the one above says
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]
