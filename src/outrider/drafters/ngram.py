"""Prompt lookup: guess what followed the last few tokens where they occurred before.

Free of any model, and right surprisingly often where output repeats input, as in edits, summaries
and code (Saxena, "Prompt Lookup Decoding", 2023).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.drafters.base import SessionView
from outrider.types import NO_DRAFT, Draft, DrafterInfo

__all__ = ["NgramDrafter"]


class NgramDrafter:
    """Drafts the continuation of the latest earlier occurrence of the longest matching suffix.

    Args:
        min_match: shortest suffix, in tokens, that counts as a match.
        max_match: longest suffix looked up.
    """

    def __init__(self, *, min_match: int = 2, max_match: int = 4) -> None:
        if not 1 <= min_match <= max_match:
            raise ValueError(
                f"min_match {min_match} and max_match {max_match} leave no suffix to match"
            )
        self._lengths = range(max_match, min_match - 1, -1)
        self._indexes: dict[str, _Index] = {}

    async def describe(self) -> DrafterInfo:
        return DrafterInfo(name="ngram", ahead=True)

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        index = self._indexes.setdefault(view.session_id, _Index())
        index.extend(view, self._lengths)
        end = view.length + len(view.guess)
        longest = self._lengths[0]
        last = (*view.tokens[max(view.length - longest, 0) : view.length], *view.guess)
        for length in self._lengths:
            if end <= length:
                continue
            start = index.followers.get(last[-length:])
            if start is not None:
                # Where the copy reaches the end of what is known, it goes on with what it copied:
                # a loop stays a loop.
                copied = (*view.tokens[start : min(start + max_tokens, view.length)], *view.guess)
                period = end - start
                tokens = (copied[index % period] for index in range(max_tokens))
                return Draft(tuple(tokens), "ngram", length)
        return NO_DRAFT

    async def release(self, session_id: str) -> None:
        self._indexes.pop(session_id, None)

    async def close(self) -> None:
        self._indexes.clear()


@dataclass(slots=True)
class _Index:
    """Where each n-gram of a session was last followed by something. Grows by new tokens only."""

    followers: dict[tuple[int, ...], int] = field(default_factory=dict)
    indexed: int = 0

    def extend(self, view: SessionView, lengths: range) -> None:
        """Enter every n-gram that ends before the last token: that one has no follower yet."""
        for follower in range(max(self.indexed, 1), view.length):
            for length in lengths:
                if follower >= length:
                    self.followers[tuple(view.tokens[follower - length : follower])] = follower
        self.indexed = max(self.indexed, view.length)
