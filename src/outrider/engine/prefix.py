"""Which sequences begin as a given one does. Tenants are kept apart: none ever meets another's."""

from __future__ import annotations

import bisect
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from outrider.errors import RequestError

__all__ = ["PrefixIndex"]

_WIDTH: Final = 4  # bytes of a token id in a key


class PrefixIndex:
    """Numbered sequences of tokens, found by how they begin.

    Per tenant the sequences are kept sorted, so the ones that share most with a given one are its
    neighbours: finding them costs a binary search of comparisons in C, however many there are and
    however long.
    """

    def __init__(self) -> None:
        self._sorted: dict[str, list[tuple[bytes, int]]] = {}
        self._entries: dict[int, tuple[str, bytes]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, number: int, tenant: str, token_ids: Sequence[int]) -> None:
        """Enter a sequence under a number that is not in use.

        Raises:
            RequestError: a token id is negative or wider than 32 bits.
        """
        key = _key(token_ids)
        bisect.insort(self._sorted.setdefault(tenant, []), (key, number))
        self._entries[number] = (tenant, key)

    def remove(self, number: int) -> None:
        """Forget a sequence. Unknown numbers are ignored."""
        entry = self._entries.pop(number, None)
        if entry is None:
            return
        tenant, key = entry
        entries = self._sorted[tenant]
        del entries[bisect.bisect_left(entries, (key, number))]
        if not entries:
            del self._sorted[tenant]

    def matches(self, tenant: str, token_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The tenant's sequences with a beginning in common: number, and how many tokens of it.

        Longest first. Nothing may be added or removed while the iteration goes on.

        Raises:
            RequestError: see `add`.
        """
        return self._matches(tenant, _key(token_ids))

    def like(self, number: int) -> Iterator[tuple[int, int]]:
        """The same for a sequence that was entered, itself among them; nothing if it was not."""
        if number in self._entries:
            yield from self._matches(*self._entries[number])

    def size(self, number: int) -> int:
        """Tokens of a sequence; 0 if it was not entered."""
        return len(self._entries[number][1]) // _WIDTH if number in self._entries else 0

    def _matches(self, tenant: str, key: bytes) -> Iterator[tuple[int, int]]:
        entries = self._sorted.get(tenant, [])

        def common(place: int) -> int:
            return _common(key, entries[place][0]) if 0 <= place < len(entries) else 0

        after = bisect.bisect_left(entries, (key,))
        before = after - 1
        left, right = common(before), common(after)
        while left or right:
            if left > right:
                yield entries[before][1], left
                before -= 1
                left = common(before)
            else:
                yield entries[after][1], right
                after += 1
                right = common(after)


def _key(token_ids: Sequence[int]) -> bytes:
    """Big-endian, so that bytes sort as the ids do."""
    try:
        key = array("I", token_ids)
    except OverflowError:
        raise RequestError(
            f"token ids from {min(token_ids)} to {max(token_ids)} were sent; ids are not negative"
            " and below 2**32",
            code="invalid_token_id",
        ) from None
    if sys.byteorder == "little":
        key.byteswap()
    return key.tobytes()


def _common(one: bytes, other: bytes) -> int:
    """Tokens that both keys begin with."""
    count = min(len(one), len(other)) // _WIDTH
    if count == 0:
        return 0
    differs = np.frombuffer(one, np.uint32, count) != np.frombuffer(other, np.uint32, count)
    first = int(differs.argmax())
    return first if differs[first] else count
