"""Server-sent events, from the bytes as they come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Event", "Events"]


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream.

    Attributes:
        at: when its last byte was read, by the reader's clock, in s.
        data: of its `data` lines, joined.
    """

    at: float
    data: bytes


class Events:
    """Cuts a stream of bytes into the data of its events, as the HTML standard says."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, block: bytes) -> Iterator[bytes]:
        """The data of every event that ends within `block`."""
        lines = (self._rest + block).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            stripped = line.removesuffix(b"\r")
            if not stripped and self._data:
                yield b"\n".join(self._data)
                self._data = []
            name, _, value = stripped.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
