"""What is read of a server's answers. Everything else in them is ignored."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

__all__ = ["Choice", "Completion", "Models", "Speculation", "complaint", "decode"]

_COMPLAINT_CHARS = 300

T = TypeVar("T")


class _Model(Struct):
    id: str


class Models(Struct):
    """`GET /v1/models`."""

    data: list[_Model]


class _Message(Struct):
    content: str | None = None


class Choice(Struct):
    """One sample. `token_ids` comes where the server takes `return_token_ids`."""

    text: str | None = None
    message: _Message | None = None
    token_ids: list[int] | None = None

    @property
    def said(self) -> str:
        return self.text or (self.message.content if self.message else None) or ""


class Speculation(Struct):
    """Outrider's account of a response."""

    drafted_tokens: int = 0
    accepted_tokens: int = 0
    verification: str | None = None
    exact: str | None = None
    reason: str | None = None


class _Timings(Struct):
    """llama-server's."""

    draft_n: int = 0
    draft_n_accepted: int = 0


class Completion(Struct):
    """A plain completion or a chat's. `account` is what it tells of drafts, if anything."""

    choices: list[Choice]
    speculation: Speculation | None = None
    timings: _Timings | None = None

    @property
    def account(self) -> Speculation | None:
        if self.speculation is None and self.timings is not None:
            timings = self.timings
            return Speculation(timings.draft_n, timings.draft_n_accepted)
        return self.speculation


def decode(content: bytes, kind: type[T]) -> T | None:
    """`content` as a `kind`, or None if it is none."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def complaint(content: bytes) -> str:
    """The message of an error response, whichever of the usual forms it has, on one line."""
    said: object = decode(content, dict)
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and key in said:
            said = said[key]
    text = said if isinstance(said, str) else content.decode("utf-8", "replace")
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _COMPLAINT_CHARS else f"{line[:_COMPLAINT_CHARS]}..."
