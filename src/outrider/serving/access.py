"""Who may call a server: the shared secret, and where a server without one may listen."""

from __future__ import annotations

import hmac
import ipaddress

from starlette.exceptions import HTTPException
from starlette.types import Scope

from outrider.config import PeerSettings
from outrider.errors import ConfigError

__all__ = ["Bearer", "check_exposure"]


class Bearer:
    """Asks for the token of `peers`, if there is one."""

    def __init__(self, peers: PeerSettings) -> None:
        token = peers.token.get_secret_value()
        self._expected = f"Bearer {token}".encode() if token else None

    def check(self, scope: Scope) -> None:
        """Raise `HTTPException` (401) unless the request shows the token."""
        if self._expected is None:
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if not hmac.compare_digest(given, self._expected):
            raise HTTPException(
                401,
                "the bearer token is missing or wrong; set the same peers.token on both sides",
                headers={"WWW-Authenticate": "Bearer"},
            )


def check_exposure(host: str, peers: PeerSettings, section: str) -> None:
    """Raise `ConfigError` if strangers could call a server that asks for no token.

    Args:
        host: address to bind.
        peers: holds the token.
        section: of the settings that name the host.
    """
    if peers.token.get_secret_value() or _is_loopback(host):
        return
    raise ConfigError(
        f"{section}.host is {host!r}, which other machines reach, and there is no peers.token; set "
        "one (OUTRIDER_PEERS__TOKEN) here and in the gateway, or listen on 127.0.0.1"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"
