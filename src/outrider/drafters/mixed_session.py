"""A session that several drafters draft for: drafts under way, and drafts to be scored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from outrider.drafters.base import SessionView
from outrider.drafters.mixed_part import Part
from outrider.types import NO_DRAFT, Draft, TokenIds

__all__ = ["NO_CHANCE", "Chance", "Late", "MixedSession"]


@dataclass(frozen=True, slots=True)
class Chance:
    """A draft with the class of its match and the tokens expected to be right."""

    part: Part | None = None
    draft: Draft = NO_DRAFT
    bucket: int = 0
    expected: float = 0.0


NO_CHANCE: Final = Chance()


@dataclass(frozen=True, slots=True)
class Late:
    """A draft being made behind `start` tokens."""

    task: asyncio.Future[Draft]
    start: int
    bucket: int


@dataclass(slots=True)
class _Noted:
    """A draft to be scored against what is committed from `start` on, as far as `checked`."""

    part: Part
    bucket: int
    start: int
    token_ids: TokenIds
    checked: int = 0

    def score(self, tokens: Sequence[int], length: int) -> bool:
        """Compare with what is new; whether there is more to compare."""
        while self.checked < len(self.token_ids) and self.start + self.checked < length:
            right = tokens[self.start + self.checked] == self.token_ids[self.checked]
            self.part.odds.observe(self.bucket, self.checked, right=right)
            if not right:
                return False
            self.checked += 1
        return self.checked < len(self.token_ids)


@dataclass(slots=True)
class MixedSession:
    """A session under way.

    Attributes:
        view: the latest.
        began_s: when it was last asked for.
        given, given_s: tokens of the last draft, and when it was given.
        read: how many tokens of the session a part has seen.
        late: drafts that did not come in time.
        noted: drafts to be scored.
    """

    view: SessionView
    began_s: float
    given: int = 0
    given_s: float = 0.0
    read: dict[Part, int] = field(default_factory=dict)
    late: dict[Part, Late] = field(default_factory=dict)
    noted: list[_Noted] = field(default_factory=list)

    def proposed(self, draft: Draft, now: float) -> None:
        self.given, self.given_s = len(draft), now

    def note(self, part: Part, bucket: int, start: int, draft: Draft) -> Chance | None:
        """Keep a draft to be scored; what to expect of it, or None if it is empty."""
        if not draft:
            return None
        self.noted.append(_Noted(part, bucket, start, draft.token_ids))
        return Chance(part, draft, bucket, part.odds.expected(bucket, len(draft))[-1])

    def arrived(self) -> list[Chance]:
        """The drafts that have come, no longer under way; failures are seen to."""
        chances = []
        for part, late in list(self.late.items()):
            if not late.task.done():
                continue
            del self.late[part]
            error = asyncio.CancelledError() if late.task.cancelled() else late.task.exception()
            part.ended(error)
            if error is None:
                chances.append(self.note(part, late.bucket, late.start, late.task.result()))
        return [chance for chance in chances if chance]

    def score(self, length: int) -> None:
        """Judge drafts by the session's first `length` tokens.

        The target's own token stands in every place, whichever draft was judged, so all are scored
        as far as they go, cut or not.
        """
        self.noted = [noted for noted in self.noted if noted.score(self.view.tokens, length)]
