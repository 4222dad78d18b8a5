"""From the addresses of target servers to channels: TLS, token, keep-alive, limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import grpc

from outrider.config import PeerSettings
from outrider.errors import ConfigError

__all__ = ["Address", "call_metadata", "open_channel", "parse_addresses"]

_SCHEMES: Final = {"grpc": False, "grpcs": True}
_MAX_RECEIVED: Final = 64 * 1024 * 1024
"""Bytes of a message: `Describe` carries a tokenizer, of which the largest have 40 MB."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MAX_RECEIVED),
    # A stopped process or a connection that is open on this side alone is found within 6 s.
    ("grpc.keepalive_time_ms", 3000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),  # a minute otherwise, whatever the one above says
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Whoever waits for a server that restarts would otherwise wait for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Targets are peers on the own network; a proxy for the web has no business there.
    ("grpc.enable_http_proxy", 0),
    # What one channel knows of an unreachable address is not held against another.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a target server listens.

    Attributes:
        host: a name, or an IPv4 or IPv6 address.
        port: TCP port.
        secure: whether it speaks TLS.
    """

    host: str
    port: int
    secure: bool = False

    def __str__(self) -> str:
        return f"grpc{'s' if self.secure else ''}://{self.authority}"

    @property
    def authority(self) -> str:
        """Host and port in the form that gRPC reads."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(spec: str) -> tuple[Address, ...]:
    """The addresses in grpc://HOST:PORT or grpcs://HOST:PORT, several with commas between.

    Raises:
        ConfigError: one of them is no such address, or is named twice.
    """
    addresses = tuple(_parse(part.strip()) for part in spec.split(","))
    for index, address in enumerate(addresses):
        if any((address.host, address.port) == (a.host, a.port) for a in addresses[:index]):
            raise ConfigError(f"engine.target names {address} twice; name every server once")
    return addresses


def _parse(part: str) -> Address:
    shape = "write grpc://HOST:PORT, or grpcs://HOST:PORT for TLS, with commas between several"
    try:
        url = urlsplit(part)
        host, port = url.hostname, url.port
    except ValueError as error:
        raise ConfigError(f"engine.target has {part!r}: {error}; {shape}") from None
    if url.scheme not in _SCHEMES:
        raise ConfigError(f"engine.target has {part!r}, which is no target server; {shape}")
    if not host or not port:
        missing = "host" if not host else "port"
        raise ConfigError(f"engine.target has {part!r}, which names no {missing}; {shape}")
    if url.path or url.query or url.fragment or url.username is not None:
        raise ConfigError(f"engine.target has {part!r}, more than a host and a port; {shape}")
    return Address(host, port, _SCHEMES[url.scheme])


def open_channel(address: Address, peers: PeerSettings) -> grpc.aio.Channel:
    """A channel that connects when it is first used. To be called on a running event loop.

    Raises:
        ConfigError: `peers.ca_file` cannot be read.
    """
    if not address.secure:
        return grpc.aio.insecure_channel(address.authority, options=_OPTIONS)
    trusted = None
    if peers.ca_file is not None:
        try:
            trusted = peers.ca_file.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"peers.ca_file {peers.ca_file} cannot be read: {error.strerror}; name a PEM file"
            ) from None
    credentials = grpc.ssl_channel_credentials(root_certificates=trusted)
    return grpc.aio.secure_channel(address.authority, credentials, options=_OPTIONS)


def call_metadata(peers: PeerSettings) -> Sequence[tuple[str, str]]:
    """What every call shows: the bearer token, if there is one."""
    token = peers.token.get_secret_value()
    return (("authorization", f"Bearer {token}"),) if token else ()
