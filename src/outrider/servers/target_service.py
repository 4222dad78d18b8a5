"""The gRPC service of a target server."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError

from outrider.errors import OutriderError, Overloaded, RequestError
from outrider.rpc import target_inference_pb2 as pb
from outrider.servers.decode_stream import DecodeStream
from outrider.servers.target_checks import Checks
from outrider.servers.target_sessions import Sessions
from outrider.targets import Scoring
from outrider.targets.wire import encode_info

__all__ = ["SERVICE", "TargetService"]

SERVICE: Final = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name

_Context = grpc.aio.ServicerContext[Any, Any]


class TargetService:
    """Answers `Describe`, `Validate` and `Decode`.

    Args:
        sessions: of the server.
        scoring: tells logits; None if the target cannot.
        concurrency_limit: calls at a time.
        max_message_bytes: of a message in either direction.
    """

    def __init__(
        self,
        sessions: Sessions,
        scoring: Scoring | None,
        *,
        concurrency_limit: int,
        max_message_bytes: int,
    ) -> None:
        self._sessions = sessions
        self._scoring = scoring
        self._most = concurrency_limit
        self._max_message_bytes = max_message_bytes
        self._calls = 0
        self._closing = False
        self._streams: set[DecodeStream] = set()
        info, cache = self._checks.info, self._checks.cache
        self._described = encode_info(
            info,
            max_sessions=sessions.target.occupancy()[1],
            cache_tokens=None if cache is None else cache.tokens,
        )

    @property
    def described_bytes(self) -> int:
        """Size of the answer to `Describe`, which has the tokenizer in it."""
        return self._described.ByteSize()

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server is given to serve this."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Describe": grpc.unary_unary_rpc_method_handler(
                    self.describe,
                    request_deserializer=pb.DescribeRequest.FromString,
                    response_serializer=pb.DescribeResponse.SerializeToString,
                ),
                "Validate": grpc.unary_unary_rpc_method_handler(
                    self.validate,
                    request_deserializer=pb.ValidationRequest.FromString,
                    response_serializer=pb.ValidationResponse.SerializeToString,
                ),
                "Decode": grpc.stream_stream_rpc_method_handler(
                    self.decode,
                    request_deserializer=pb.DecodeRequest.FromString,
                    response_serializer=pb.DecodeResponse.SerializeToString,
                ),
            },
        )

    def close_streams(self) -> None:
        """End every stream, once what is to be told over it is written."""
        self._closing = True
        for stream in self._streams:
            stream.close()

    async def describe(self, _: pb.DescribeRequest, context: _Context) -> pb.DescribeResponse:
        context.set_compression(grpc.Compression.Gzip)  # a tokenizer takes megabytes
        return self._described

    async def validate(
        self, request: pb.ValidationRequest, context: _Context
    ) -> pb.ValidationResponse:
        if self._scoring is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this target tells no logits")
        try:
            with self._call():
                rows = self._check_validation(request)
                logits = await self._scoring.logits(tuple(request.tokens), rows)
        except OutriderError as error:
            await _abort(context, error)
        # The packed field as it is on the wire: millions of floats one by one would take seconds.
        packed = logits.astype("<f4").tobytes()
        response = pb.ValidationResponse.FromString(_FLAT_LOGITS + _varint(len(packed)) + packed)
        response.vocab_size = self._checks.info.vocab_size
        return response

    async def decode(self, requests: AsyncIterable[pb.DecodeRequest], context: _Context) -> None:
        try:
            with self._call():
                stream = DecodeStream(self._sessions, self._max_message_bytes)
                self._streams.add(stream)
                self._sessions.metrics.streams.inc()
                try:
                    await stream.run(requests, context.write)
                finally:
                    self._sessions.metrics.streams.dec()
                    self._streams.discard(stream)
        except Overloaded as error:
            await _abort(context, error)
        except DecodeError:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "this is no DecodeRequest; the stream ends"
            )
        if self._closing:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "the target server is shutting down; try another one"
            )

    @contextmanager
    def _call(self) -> Iterator[None]:
        if self._calls >= self._most:
            raise Overloaded(
                f"the target server serves {self._calls} calls already, all that its "
                "target_server.concurrency_limit allows; use fewer streams, or raise it"
            )
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    @property
    def _checks(self) -> Checks:
        return self._sessions.checks

    def _check_validation(self, request: pb.ValidationRequest) -> int:
        """How many rows are asked for, if they can be had."""
        info = self._checks.info
        rows, tokens = request.validation_offset + 1, len(request.tokens)
        if not rows <= tokens <= info.context_length:
            raise RequestError(
                f"tokens has {tokens} ids and validation_offset is {request.validation_offset}; "
                "send more ids than the offset, and at most the context of this model, "
                f"{info.context_length}"
            )
        size, most = 4 * rows * info.vocab_size, self._max_message_bytes - 64
        if size > most:
            raise RequestError(
                f"validation_offset is {request.validation_offset}; {rows} rows of "
                f"{info.vocab_size} logits are {size} bytes, more than a message of this server "
                f"holds: ask for at most {most // (4 * info.vocab_size)} rows, or raise its "
                "target_server.max_message_bytes"
            )
        self._checks.token_ids("tokens", request.tokens)
        return rows


_FLAT_LOGITS: Final = bytes([pb.ValidationResponse.FLAT_LOGITS_FIELD_NUMBER << 3 | 2])


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


async def _abort(context: _Context, error: OutriderError) -> NoReturn:
    match error:
        case Overloaded():
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
        case RequestError():
            code = grpc.StatusCode.INVALID_ARGUMENT
        case _:
            code = grpc.StatusCode.INTERNAL
    await context.abort(code, str(error))
