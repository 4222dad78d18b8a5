"""One map from errors to HTTP: a status, and OpenAI's `{"error": {message, type, param, code}}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from starlette.exceptions import HTTPException

from outrider.errors import (
    ConfigError,
    ContextLengthExceeded,
    CorruptData,
    CorruptModel,
    DraftFailed,
    FetchFailed,
    ModelError,
    OutriderError,
    Overloaded,
    RequestError,
    SessionLost,
    StaleRound,
    TargetFailed,
    TrainingError,
    UnknownModel,
    UnsupportedModel,
    VocabularyMismatch,
)

__all__ = ["STATUS_OF", "ClientGone", "Failure", "failure_of"]

STATUS_OF: Mapping[type[OutriderError], tuple[int, str]] = {
    OutriderError: (500, "internal_error"),
    ConfigError: (500, "internal_error"),
    ModelError: (500, "internal_error"),
    UnknownModel: (500, "internal_error"),
    FetchFailed: (500, "internal_error"),
    CorruptModel: (500, "internal_error"),
    UnsupportedModel: (500, "internal_error"),
    VocabularyMismatch: (500, "internal_error"),
    RequestError: (400, "invalid_request_error"),
    ContextLengthExceeded: (400, "invalid_request_error"),
    Overloaded: (429, "rate_limit_error"),
    DraftFailed: (502, "draft_error"),
    TargetFailed: (502, "target_error"),
    TrainingError: (500, "internal_error"),
    CorruptData: (500, "internal_error"),
    StaleRound: (500, "internal_error"),
    SessionLost: (502, "target_error"),
}
"""HTTP status and error type of every class of the error tree, each by name."""

_STATUS_OF_CODE = {"model_not_found": 404}

_HTTP: Mapping[int, tuple[str, str]] = {
    401: ("authentication_error", "invalid_token"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("timeout_error", "request_timeout"),
    409: ("conflict_error", "conflict"),
    413: ("invalid_request_error", "request_too_large"),
    415: ("invalid_request_error", "unsupported_media_type"),
    503: ("server_error", "shutting_down"),
}


class ClientGone(Exception):
    """The client closed the connection; there is nobody left to tell."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a client is told of an error.

    Attributes:
        status: HTTP status.
        message: one line for a person.
        type: class of error, in OpenAI's words where it has one.
        param: the offending field, as the client spelled it.
        code: a stable word for programs.
        headers: further HTTP headers, such as `Retry-After`.
    """

    status: int
    message: str
    type: str
    param: str | None
    code: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """The JSON of the error; also the payload of an error event inside a stream."""
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": self.type,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )


def failure_of(error: Exception) -> Failure:
    """What a client is told of `error`; the inside of an unforeseen one stays in the log."""
    match error:
        case RequestError():
            _, kind = STATUS_OF[RequestError]
            status = _STATUS_OF_CODE.get(error.code, 400)
            return Failure(status, str(error), kind, error.param, error.code)
        case Overloaded():
            status, kind = STATUS_OF[Overloaded]
            headers = {"Retry-After": str(max(error.retry_after_s, 1))}
            return Failure(status, str(error), kind, None, "overloaded", headers)
        case TargetFailed() | SessionLost():
            status, kind = STATUS_OF[type(error)]
            return Failure(status, str(error), kind, None, "target_failed")
        case DraftFailed():
            status, kind = STATUS_OF[DraftFailed]
            return Failure(status, str(error), kind, None, "draft_failed")
        case HTTPException():
            kind, code = _HTTP.get(error.status_code, ("invalid_request_error", "http_error"))
            headers = dict(error.headers or {})
            return Failure(error.status_code, error.detail, kind, None, code, headers)
        case _:
            message = "internal error; the server's log says more under this request's id"
            return Failure(500, message, "internal_error", None, "internal_error")
