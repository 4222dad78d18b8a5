"""Who may call a target server, and over what: the bearer token, and TLS."""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn, TypeVar

import grpc

from outrider.config import PeerSettings
from outrider.errors import ConfigError

__all__ = ["BearerInterceptor", "server_credentials"]

_HEALTH: Final = "/grpc.health.v1.Health/"

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class BearerInterceptor(grpc.aio.ServerInterceptor):
    """Asks for the token of `peers` on everything but the standard health service.

    A call without it ends with UNAUTHENTICATED before anything of it is read.
    """

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        # Of the kind that reads nothing before it answers, whatever kind was called: the client
        # sees the status alone.
        self._refusal: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
            _refuse
        )

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails],
            Awaitable[grpc.RpcMethodHandler[_Request, _Response] | None],
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        if handler_call_details.method.startswith(_HEALTH):
            return await continuation(handler_call_details)
        given = [
            value
            for name, value in handler_call_details.invocation_metadata or ()
            if name == "authorization"
        ]
        shown = given[0] if len(given) == 1 else ""
        if isinstance(shown, str):
            shown = shown.encode()
        if hmac.compare_digest(shown, self._expected):
            return await continuation(handler_call_details)
        return self._refusal


async def _refuse(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "the bearer token is missing or wrong; set the same peers.token on both sides",
    )


def server_credentials(peers: PeerSettings) -> grpc.ServerCredentials | None:
    """What to show to callers; None if no certificate is set, which means no TLS.

    Raises:
        ConfigError: the certificate or its key cannot be used.
    """
    if peers.cert_file is None or peers.key_file is None:
        return None
    try:
        # gRPC itself would only log what is wrong with them, and listen.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(peers.cert_file, peers.key_file)
        key, chain = peers.key_file.read_bytes(), peers.cert_file.read_bytes()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"peers.cert_file {peers.cert_file} and its key cannot be used: {error}; both must be "
            "PEM files that belong together"
        ) from None
    return grpc.ssl_server_credentials([(key, chain)])
