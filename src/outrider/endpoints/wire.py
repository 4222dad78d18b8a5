"""What is read of a server's answers. Everything else in them is ignored.

The server is not trusted: every text that leaves this room is printable, on one line and of a
limited length, and every number is in range, so that nobody else has to think of it.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

__all__ = [
    "Choice",
    "Chunk",
    "Completion",
    "Models",
    "Speculation",
    "Usage",
    "complaint",
    "decode",
    "one_line",
]

_COMPLAINT_CHARS: Final = 300
_ID_CHARS: Final = 256
_CLAIM_CHARS: Final = 200
_PIECE_CHARS: Final = 200
# What is longer than a piece is cut into several, not off: its end may be what differs.
_PIECES: Final = re.compile(
    rf"\s{{0,{_PIECE_CHARS // 2}}}\S{{1,{_PIECE_CHARS // 2}}}|\s{{1,{_PIECE_CHARS // 2}}}"
)

T = TypeVar("T")

_Count = Annotated[int, Meta(ge=0, lt=2**31)]


class _Model(Struct):
    id: str


class Models(Struct):
    """`GET /v1/models`."""

    data: list[_Model]

    @property
    def ids(self) -> list[str]:
        """Fit to be shown; see `unfit`."""
        return [one_line(model.id, _ID_CHARS) for model in self.data]

    @property
    def unfit(self) -> bool:
        """Some of `ids` are not what the server calls its models, so it would not know them."""
        return any(model.id != shown for model, shown in zip(self.data, self.ids, strict=True))


class _Message(Struct):
    content: str | None = None


class Choice(Struct):
    """One sample. `token_ids` comes where the server takes `return_token_ids`."""

    text: str | None = None
    message: _Message | None = None
    token_ids: list[_Count] | None = None

    def pieces(self, count: int | None = None) -> tuple[str, ...]:
        """The first `count` words of its text, each with the space before it.

        Escaped as in a Python literal, which keeps different texts different.
        """
        found = islice(_PIECES.finditer(self._text), count)
        return tuple(_escaped(piece.group()) for piece in found)

    def apart(self, other: Choice) -> str:
        """Its text from where it is not `other`'s any more, escaped as in `pieces`."""
        mine, others = self._text, other._text
        pairs = enumerate(zip(mine, others, strict=False))
        shorter = min(len(mine), len(others))
        return _escaped(mine[next((at for at, (a, b) in pairs if a != b), shorter) :])

    @property
    def _text(self) -> str:
        return self.text or (self.message.content if self.message else None) or ""


class Speculation(Struct):
    """Outrider's account of a response."""

    drafted_tokens: _Count = 0
    accepted_tokens: _Count = 0
    rounds: _Count | None = None
    verification: str | None = None
    exact: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        self.verification = _claim(self.verification)
        self.exact = _claim(self.exact)
        self.reason = _claim(self.reason)


class _Timings(Struct):
    """llama-server's."""

    draft_n: _Count = 0
    draft_n_accepted: _Count = 0


class _Account(Struct):
    """`account` is what an answer tells of drafts, if anything."""

    speculation: Speculation | None = None
    timings: _Timings | None = None

    @property
    def account(self) -> Speculation | None:
        if self.speculation is None and self.timings is not None:
            timings = self.timings
            return Speculation(timings.draft_n, timings.draft_n_accepted)
        return self.speculation


class Completion(_Account, kw_only=True):
    """A plain completion or a chat's."""

    choices: list[Choice]


class _PromptDetails(Struct):
    cached_tokens: _Count | None = None


class Usage(Struct):
    """Tokens, the last of an output included."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Of the prompt, those that were not computed anew; None if not told."""
        details = self.prompt_tokens_details
        return None if details is None else details.cached_tokens


class _Delta(Struct):
    """What a chat's answer grows by; reasoning is named in two ways."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Growth(Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self.finish_reason = _claim(self.finish_reason)


class Chunk(_Account):
    """One event of a stream with one choice. `error` ends it.

    `usage` is of the request so far: with every chunk or with the last, if the server tells it.
    """

    choices: list[_Growth] = []
    usage: Usage | None = None
    error: Any = None

    @property
    def thought(self) -> str:
        """What it adds to the reasoning in front of the answer."""
        return "".join(
            choice.delta.reasoning_content or choice.delta.reasoning or ""
            for choice in self.choices
            if choice.delta
        )

    @property
    def text(self) -> str:
        """What it adds to the answer."""
        return "".join(
            choice.text or (choice.delta.content if choice.delta else None) or ""
            for choice in self.choices
        )

    @property
    def finish_reason(self) -> str | None:
        return next((c.finish_reason for c in self.choices if c.finish_reason), None)


def decode(content: bytes, kind: type[T]) -> T | None:
    """`content` as a `kind`, or None if it is none."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def complaint(content: bytes) -> str:
    """The message of an error response, whichever of the usual forms it has, on one line."""
    said: object = decode(content, dict)
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and key in said:
            said = said[key]
    text = said if isinstance(said, str) else content.decode("utf-8", "replace")
    return one_line(" ".join(one_line(text, len(text)).split()), _COMPLAINT_CHARS)


def one_line(text: str, chars: int) -> str:
    """`text` with a space for all that is not printable, and cut behind `chars` characters."""
    line = "".join(c if c.isprintable() else " " for c in text[:chars])
    return line if len(text) <= chars else f"{line}..."


def _claim(text: str | None) -> str | None:
    return None if text is None else one_line(text, _CLAIM_CHARS)


def _escaped(text: str) -> str:
    return "".join(
        c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode("ascii")
        for c in text
    )
