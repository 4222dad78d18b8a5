"""Predicted outputs: the caller says what the output will largely be, as in OpenAI's `prediction`.

Where the output leaves the prediction, what it says next is looked for there, ahead of the place
where it left, so that a deletion, an insertion or a substitution costs a few tokens, not the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from outrider.drafters.base import Drafter, SessionView
from outrider.types import NO_DRAFT, Draft, DrafterInfo, TokenIds

__all__ = ["PREDICTION", "PredictionDrafter"]

PREDICTION: Final = "prediction"
"""The source of drafts that come from a prediction."""

_MATCHES: Final = (16, 8, 4)
"""So many last tokens of the output are looked for in the whole prediction, one after the other."""

_NEAR_MATCHES: Final = (2, 1)
_NEAR: Final = 16
"""So few are looked for only so near behind the place where the output left."""

_SURE: Final = 4
"""Tokens of agreement from which on a place is trusted."""


class PredictionDrafter:
    """Drafts for one session, from its prediction or, where that has nothing to say, from another.

    Never draws for ratio verification, and drafts nothing behind a guess, whatever the other can.

    Args:
        prediction: token ids that the output is likely to hold, in this order.
        fallback: another drafter, with what it says of itself. It is released with the session, and
            closed by whoever owns it. None drafts nothing else.
    """

    def __init__(
        self, prediction: TokenIds, fallback: tuple[Drafter, DrafterInfo] | None = None
    ) -> None:
        self._prediction = prediction
        # One character per token, as far as it goes: strings are searched in linear time.
        self._text = "".join(map(chr, prediction))
        self._fallback = None if fallback is None else fallback[0]
        self._info = DrafterInfo(name=PREDICTION) if fallback is None else fallback[1]
        self._read = 0  # tokens of the output that were compared
        self._place: int | None = 0  # where the output goes on in the prediction
        self._sure = 0  # the last such place that was more than a guess
        self._agreed = _SURE  # tokens in front of the place that are the output's

    @property
    def info(self) -> DrafterInfo:
        """What it says of itself."""
        return replace(self._info, declares=False, ahead=False, context_length=None)

    async def describe(self) -> DrafterInfo:
        return self.info

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        self._follow(view)
        if self._place is not None and self._place < len(self._prediction):
            most = max_tokens if self._agreed >= _SURE else min(max_tokens, _SURE)
            tokens = self._prediction[self._place : self._place + most]
            return Draft(tokens, PREDICTION)
        limit = self._info.context_length
        if limit is not None:
            max_tokens = min(max_tokens, limit - view.length)
        if max_tokens < 1 or self._fallback is None:
            return NO_DRAFT
        return await self._fallback.propose(view, max_tokens)

    async def release(self, session_id: str) -> None:
        if self._fallback is not None:
            await self._fallback.release(session_id)

    async def close(self) -> None:
        """Nothing is held."""

    def _follow(self, view: SessionView) -> None:
        """Find the place in the prediction that the output has come to."""
        new = view.tokens[view.prompt_length + self._read : view.length]
        self._read += len(new)
        place = self._place
        if place is not None and self._prediction[place : place + len(new)] == tuple(new):
            self._join(place + len(new), self._agreed + len(new))
        elif new:
            self._rejoin(view)

    def _join(self, place: int, agreed: int) -> None:
        self._place, self._agreed = place, agreed
        if agreed >= _SURE:
            self._sure = place

    def _rejoin(self, view: SessionView) -> None:
        """Look for the last tokens of the output: the more of them, and the nearer, the better."""
        first = max(view.prompt_length, view.length - _MATCHES[0])
        last = "".join(map(chr, view.tokens[first : view.length]))
        for length in (length for length in _MATCHES if length <= len(last)):
            wanted = last[-length:]
            found = self._text.find(wanted, self._sure)
            if found < 0:
                found = self._text.rfind(wanted, 0, self._sure)
            if found >= 0:
                self._join(found + length, length)
                return
        for length in (length for length in _NEAR_MATCHES if length <= len(last)):
            found = self._text.find(last[-length:], self._sure, self._sure + _NEAR)
            if found >= 0:
                self._join(found + length, length)
                return
        self._place = None
