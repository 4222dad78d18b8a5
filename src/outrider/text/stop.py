"""Stop strings, found in a text that arrives in pieces of any size."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.errors import RequestError

__all__ = ["StopStrings"]


class StopStrings:
    """Passes text on until one of several stop strings is complete.

    The text is read character by character, so how it is cut into pieces changes nothing. The stop
    string that is completed first wins; of several completed by the same character the longest.
    What precedes it is shown, it and what follows never. Held back is only the longest end of the
    text that may still grow into a stop string. Cost: a few operations per character and stop
    string (Knuth, Morris, Pratt).

    Attributes:
        matched: the stop string that ended the text, or None.

    Raises:
        RequestError: a stop string is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise RequestError("a stop string is empty; leave it out", param="stop")
        self.matched: str | None = None
        self._held = ""
        self._searches = [_Search(stop) for stop in dict.fromkeys(stops)]

    def push(self, text: str) -> str:
        """The text that may be shown now, given what has newly come."""
        if self.matched is not None:
            return ""
        if not self._searches:
            return text
        pending = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            complete = [search.stop for search in self._searches if search.feed(char)]
            if complete:
                self.matched = max(complete, key=len)
                self._held = ""
                return pending[: end - len(self.matched)]
        keep = max(search.length for search in self._searches)
        cut = len(pending) - keep
        self._held = pending[cut:]
        return pending[:cut]

    def flush(self) -> str:
        """The text still held back, at the end of an output that no stop string ended."""
        held, self._held = self._held, ""
        return held


class _Search:
    """One stop string, and how much of it the text so far ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._borders = [0] * len(stop)
        border = 0
        for index in range(1, len(stop)):
            while border and stop[index] != stop[border]:
                border = self._borders[border - 1]
            border += stop[index] == stop[border]
            self._borders[index] = border

    def feed(self, char: str) -> bool:
        while self.length and char != self.stop[self.length]:
            self.length = self._borders[self.length - 1]
        self.length += char == self.stop[self.length]
        return self.length == len(self.stop)
