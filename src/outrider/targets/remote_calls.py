"""The calls that a gateway makes to one target server, beside what goes over the stream."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # it comes without types

from outrider.config import PeerSettings
from outrider.errors import ConfigError, TargetFailed
from outrider.rpc import target_inference_pb2 as pb
from outrider.rpc.channel import Address, call_metadata, open_channel
from outrider.targets.decode_stream import Break, Call
from outrider.targets.wire import decode_info
from outrider.types import PROTOCOL_VERSION, TargetInfo

__all__ = ["Described", "RemoteCalls"]

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name
_DESCRIBE_S: Final = 60.0
"""Seconds that the tokenizer may take on its way."""
_ATTEMPT_S: Final = 5.0
_PAUSE_S: Final = 0.2
_REFUSALS: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


@dataclass(frozen=True, slots=True)
class Described:
    """What a server says of itself.

    Attributes:
        info: of its target.
        max_sessions: that fit.
        cache_tokens: that all sessions together may come to; None if unbounded.
    """

    info: TargetInfo
    max_sessions: int
    cache_tokens: int | None


class RemoteCalls:
    """Makes calls over a channel of its own. For one event loop.

    Args:
        address: of the server.
        peers: the token, and whom to trust.
    """

    def __init__(self, address: Address, peers: PeerSettings) -> None:
        self._address = address
        self._peers = peers
        self._metadata = call_metadata(peers)
        self._channel: grpc.aio.Channel | None = None

    async def wait(self, patience_s: float) -> None:
        """Wait until the server is there and takes sessions.

        Raises:
            TargetFailed: it is not within the time.
            ConfigError: `peers.ca_file` cannot be read.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while True:
            left = deadline - loop.time()
            broken = await self.health(min(max(left, _PAUSE_S), _ATTEMPT_S))
            if broken is None:
                return
            if left <= _PAUSE_S:
                raise TargetFailed(
                    f"the target server at {self._address} cannot be reached: {broken.reason}; "
                    "start it there with `outrider serve target`, or correct engine.target "
                    "(grpcs:// if it speaks TLS)"
                )
            await asyncio.sleep(_PAUSE_S)

    async def health(self, timeout_s: float) -> Break | None:
        """Why the server takes no sessions, by the standard health service; None if it does."""
        check = self._open().unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            response = await check(
                health_pb2.HealthCheckRequest(), timeout=timeout_s, metadata=self._metadata
            )
        except grpc.RpcError as error:
            broken = Break.of(error)
            # A server without the service may be well.
            return None if broken.code is grpc.StatusCode.UNIMPLEMENTED else broken
        if response.status == health_pb2.HealthCheckResponse.SERVING:
            return None
        return Break("it takes no sessions now, since it starts or shuts down")

    async def describe(self) -> Described:
        """What the server says of itself.

        Raises:
            TargetFailed: nothing, or nothing that makes sense.
            ConfigError: it does not let us in, or speaks another version of the protocol.
        """
        call: Any = self._open().unary_unary(
            f"/{_SERVICE}/Describe", request_serializer=pb.DescribeRequest.SerializeToString
        )
        told = f"the target server at {self._address}"
        try:
            data = await call(pb.DescribeRequest(), timeout=_DESCRIBE_S, metadata=self._metadata)
            message = pb.DescribeResponse.FromString(data)
        except grpc.RpcError as error:
            broken = Break.of(error)
            if broken.code in _REFUSALS:
                raise ConfigError(f"{told} lets nobody in: {broken.reason}") from None
            raise TargetFailed(f"{told} does not say what it is: {broken.reason}") from None
        except DecodeError as error:
            raise TargetFailed(f"{told} says of itself what is no message: {error}") from None
        if message.protocol_version != PROTOCOL_VERSION:
            raise ConfigError(
                f"{told} speaks version {message.protocol_version} of the protocol, and this "
                f"gateway version {PROTOCOL_VERSION}; run the same version of Outrider on both"
            )
        info = decode_info(message)
        if not (info.model_hash and info.vocab_size and info.context_length):
            raise TargetFailed(
                f"{told} names model hash {info.model_hash!r:.80}, {info.vocab_size} token ids and "
                f"a context of {info.context_length}; none of them can be missing"
            )
        cache_tokens = message.cache_tokens if message.HasField("cache_tokens") else None
        return Described(info, message.max_sessions, cache_tokens)

    def decode(self) -> Call:
        """A new stream, of serialized messages."""
        call: Any = self._open().stream_stream(f"/{_SERVICE}/Decode")
        stream: Call = call(metadata=self._metadata)
        return stream

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    def _open(self) -> grpc.aio.Channel:
        # Not before: a channel belongs to the event loop that runs while it is made.
        if self._channel is None:
            self._channel = open_channel(self._address, self._peers)
        return self._channel
