"""Bounded logs of tokens in which the continuations of a text are found.

A log keeps the last so many tokens of what was appended to it, in a ring. For every position it
knows the position before that ended in the same 2, 4, 8 and 16 tokens (or in others of the same
hash, which is checked), as the window of an LZ77 compressor does. So memory is fixed, the oldest
tokens go first and at no cost, and whatever was appended, a lookup takes a bounded time.

A lookup gathers where the end of a text occurred, the longest matches first and of equal ones the
latest, up to 32. It follows the majority of those with the longest match, and of all with at least
16, 8, 4 and 2 tokens; what has the most tokens that are expected to be right wins. (SuffixDecoding,
arXiv 2411.04975, does so with the counts of a suffix tree.)

What `votes` of `count` occurrences say is expected to be right with probability
votes / (count + 4 / m^2), where m tokens match, those drafted so far included: few occurrences of a
short match say little, however much they agree. A draft ends where it is wholly right with a
probability below 0.2. So its length follows from how long the match is and how unanimous.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from outrider.types import TokenIds

__all__ = ["MAX_TOKENS", "NO_GUESS", "SEPARATOR", "Guess", "PythonLog", "SuffixLog", "open_log"]

MAX_TOKENS: Final = 64
"""Most that one lookup drafts."""

SEPARATOR: Final = -1
"""Stands between texts: no match and no continuation goes across."""

# Each of these stands in native/suffix.c as well.
_ORDERS: Final = (2, 4, 8, 16)
_MAX_MATCH: Final = 64
_STEPS: Final = 32
_CANDIDATES: Final = 32
_ESCAPE: Final = 4.0
_LEAST: Final = 0.2
_FACTOR: Final = 0x9E3779B1

_WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Guess:
    """What is likely to follow.

    Attributes:
        token_ids: at most as many as were asked for.
        match: tokens in front of it that occurred before.
        score: how many of the tokens are expected to be right.
    """

    token_ids: TokenIds = ()
    match: int = 0
    score: float = 0.0


NO_GUESS: Final = Guess()


class SuffixLog(Protocol):
    """The last `window` tokens of what was appended."""

    @property
    def window(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """Memory that the log takes."""
        ...

    @property
    def batch(self) -> int:
        """Tokens that are appended within a millisecond or two."""
        ...

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens, or `SEPARATOR`."""
        ...

    def find(self, text: Any, max_tokens: int) -> Guess:
        """What followed the end of a text where it occurred in this log.

        Args:
            text: a log of the same kind. If it is this very log, a copy that reaches its end goes
                on with what it copied, so that a loop stays a loop.
            max_tokens: up to `MAX_TOKENS`.
        """
        ...

    def grown(self, window: int) -> SuffixLog:
        """A log with a larger window that holds the same tokens. Only reads this one.

        Raises:
            MemoryError: there is no room for it.
        """
        ...


def open_log(window: int) -> SuffixLog:
    """An empty log: compiled if the extension module was built, else in Python.

    Args:
        window: tokens to keep; a power of 2 of at least 16.

    Raises:
        MemoryError: there is no room for it.
    """
    try:
        module = importlib.import_module("outrider._suffix")
    except ImportError:
        return PythonLog(window)
    return _NativeLog(module, window, module.lib.os_open(window))


class _NativeLog:
    """The log in C; see native/suffix.h. Other threads run while it works."""

    batch: Final = 2048

    def __init__(self, module: Any, window: int, log: Any) -> None:
        if log == module.ffi.NULL:
            raise MemoryError(f"no room for a log of {window} tokens")
        self.window = window
        self.size_bytes: int = module.lib.os_bytes(window)
        self._module = module
        self._ffi = module.ffi
        self._lib = module.lib
        self._log = module.ffi.gc(log, module.lib.os_close, self.size_bytes)
        self._guess = module.ffi.new("os_guess *")

    def append(self, tokens: Sequence[int]) -> None:
        self._lib.os_append(self._log, self._ffi.new("int32_t[]", list(tokens)), len(tokens))

    def find(self, text: _NativeLog, max_tokens: int) -> Guess:
        guess = self._guess
        self._lib.os_find(self._log, text._log, min(max_tokens, MAX_TOKENS), guess)
        if guess.length == 0:
            return NO_GUESS
        tokens = self._ffi.unpack(guess.tokens, guess.length)
        return Guess(tuple(tokens), guess.match, guess.score)

    def grown(self, window: int) -> _NativeLog:
        return _NativeLog(self._module, window, self._lib.os_grown(self._log, window))


class PythonLog:
    """The log in Python, for machines without a C compiler; the same to the last bit."""

    batch: Final = 64

    def __init__(self, window: int) -> None:
        self.window = window
        self.size_bytes = 4 * window * (1 + 2 * len(_ORDERS))
        self._mask = window - 1
        self._shift = 33 - window.bit_length()
        self._end = 0  # positions count from 1
        self._held = 0
        self._tokens = array("i", bytes(4 * window))
        self._heads = [array("I", bytes(4 * window)) for _ in _ORDERS]
        self._before = [array("I", bytes(4 * window)) for _ in _ORDERS]

    def append(self, tokens: Sequence[int]) -> None:
        mask = self._mask
        for token in tokens:
            self._end = end = (self._end + 1) & _WORD
            self._tokens[end & mask] = token
            self._held = min(self._held + 1, self.window)
            slots = self._slots(self._shift)
            for slot, heads, before in zip(slots, self._heads, self._before, strict=False):
                before[end & mask] = heads[slot]
                heads[slot] = end

    def find(self, text: PythonLog, max_tokens: int) -> Guess:
        found = self._gather(text)
        best = NO_GUESS
        for count in self._groups(found):
            guess = self._follow(found[:count], min(max_tokens, MAX_TOKENS), text is self)
            if guess.score > best.score:
                best = guess
        return best

    def grown(self, window: int) -> PythonLog:
        log = PythonLog(window)
        log.append([self._at(self._end - back) for back in range(self._held - 1, -1, -1)])
        return log

    def _at(self, position: int) -> int:
        return self._tokens[position & self._mask]

    def _slots(self, shift: int) -> list[int]:
        """Where the n-grams at the end are found, one slot per order."""
        slots = []
        code = 0
        for back in range(min(_ORDERS[-1], self._held)):
            code = ((code ^ (self._at(self._end - back) & _WORD)) * _FACTOR) & _WORD
            if back + 1 in _ORDERS:
                slots.append(code >> shift)
        return slots

    def _gather(self, text: PythonLog) -> list[tuple[int, int]]:
        """Positions and lengths of matches, the longest and latest first."""
        slots = text._slots(self._shift)
        found: list[tuple[int, int]] = []
        most = _MAX_MATCH
        for level in range(len(slots) - 1, -1, -1):
            distance = (self._end - self._heads[level][slots[level]]) & _WORD
            for _ in range(_STEPS):
                if len(found) == _CANDIDATES or distance >= self._held:
                    break
                position = (self._end - distance) & _WORD
                length = self._matched(position, distance, text, most)
                known = level < len(slots) - 1 and length >= most
                if distance > 0 and length >= _ORDERS[level] and not known:
                    found.append((position, length))
                further = (self._end - self._before[level][position & self._mask]) & _WORD
                if further <= distance:
                    break
                distance = further
            most = _ORDERS[level]
        return sorted(found, key=lambda candidate: -candidate[1])

    def _matched(self, position: int, distance: int, text: PythonLog, most: int) -> int:
        most = min(most, text._held, self._held - distance)
        length = 0
        while length < most and self._at(position - length) == text._at(text._end - length):
            length += 1
        return length

    @staticmethod
    def _groups(found: Sequence[tuple[int, int]]) -> list[int]:
        """How many of the first candidates have the longest match, and at least each order."""
        lengths = [length for _, length in found]
        least = {lengths[0], *_ORDERS} if lengths else set()
        counts = {sum(length >= bound for length in lengths) for bound in least}
        return sorted(counts - {0})

    def _follow(self, found: Sequence[tuple[int, int]], max_tokens: int, own: bool) -> Guess:
        positions = [position for position, _ in found]
        match = found[-1][1]
        tokens: list[int] = []
        score, right = 0.0, 1.0
        while len(tokens) < max_tokens:
            followers = [self._follower(position, tokens, own) for position in positions]
            votes: dict[int, int] = {}
            for token in followers:
                if token != SEPARATOR:
                    votes[token] = votes.get(token, 0) + 1
            best = max(votes, key=lambda token: votes[token], default=SEPARATOR)
            right *= votes.get(best, 0) / (len(positions) + _ESCAPE / (match + len(tokens)) ** 2)
            if right < _LEAST:
                break
            tokens.append(best)
            score += right
            pairs = zip(positions, followers, strict=True)
            positions = [position for position, follower in pairs if follower == best]
        return Guess(tuple(tokens), match, score)

    def _follower(self, position: int, drafted: Sequence[int], own: bool) -> int:
        ahead, left = len(drafted), (self._end - position) & _WORD
        if ahead < left:
            return self._at(position + 1 + ahead)
        return drafted[ahead - left] if own else SEPARATOR
