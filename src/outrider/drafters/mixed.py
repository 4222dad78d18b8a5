"""Several sources of drafts as one: in each round whichever is expected to gain most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from outrider.drafters.base import CachingDrafter, Drafter, SessionView
from outrider.drafters.mixed_part import Part
from outrider.drafters.mixed_session import NO_CHANCE, Chance, Late, MixedSession
from outrider.drafters.odds import bucket_of
from outrider.errors import ConfigError, DraftFailed
from outrider.types import NO_DRAFT, Draft, DrafterInfo

__all__ = ["MixedDrafter"]

_EXPLORED: Final = 0.01
"""Share of the time of all sessions that may go into drafts of a model that is not expected to pay,
to find out whether it would."""

_EXPLORE_TOKENS: Final = 4
_UNREAD: Final = 32
"""Behind more tokens that it has not seen, the time that a model takes says nothing of the next."""

_LONGEST_S: Final = 10.0
"""Longer between two rounds of a session, it was not decoding."""
_SMOOTHING: Final = 0.1
_SLACK: Final = 1.5


class MixedDrafter:
    """Asks several drafters for the same sessions.

    Those that only repeat tokens of the target (their `DrafterInfo` has no vocabulary) cost
    microseconds and are asked in every round. A model is asked where (1 + tokens expected to be
    right) / (seconds of the round) comes out highest with it, for as many tokens as make it so.
    What is expected is learnt from what was committed, by source, position, and length of the match
    that the best free draft rests on; every draft made is scored, also one that was not chosen.

    Its drafts are matched, never judged by ratios, so that any choice is exact.

    Args:
        parts: drafters with different names, at least two.
        deadline_s: seconds that a model may take, unless it knows better.
        clock: in seconds.

    Raises:
        ConfigError: by `describe`, if two parts have the same name.
    """

    def __init__(
        self,
        parts: Sequence[Drafter],
        *,
        deadline_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._drafters = tuple(parts)
        self._deadline_s = deadline_s
        self._clock = clock
        self._parts: tuple[Part, ...] = ()
        self._sessions: dict[str, MixedSession] = {}
        self._round_s: float | None = None
        self._time_s = self._explored_s = 0.0

    async def describe(self) -> DrafterInfo:
        """The parts taken together.

        Raises:
            ConfigError, VocabularyMismatch: two parts have the same name, or one does not fit.
        """
        infos = [part.info for part in await self._meet()]
        fingerprints = [info.vocab_fingerprint for info in infos if info.vocab_fingerprint]
        return DrafterInfo(
            name=f"mixed:{'+'.join(info.name for info in infos)}",
            deterministic=False,
            vocab_fingerprint=next(iter(fingerprints), None),
        )

    def deadline_s(self, max_tokens: int) -> float:
        """Seconds after which a draft of so many tokens is no longer to be expected."""
        waits = [part.wait_s(max_tokens) for part in self._parts if not part.free]
        return _SLACK * max(waits, default=self._deadline_s)

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        if max_tokens < 1:
            return NO_DRAFT
        parts = await self._meet()
        session = self._follow(view)
        chances = [
            chance
            for part in parts
            if part.free and (chance := await self._ask_free(part, session, max_tokens))
        ]
        best = max(chances, key=lambda chance: chance.expected, default=NO_CHANCE)
        asked = self._choose(session, best, max_tokens)
        if asked is not None:
            chance = await self._ask(asked, session, best.bucket)
            if chance is not None and (chance.expected > best.expected or not best.draft):
                best = chance
        session.proposed(best.draft, self._clock())
        if not best.draft and all(part.failed for part in parts):
            raise DraftFailed(f"all of {', '.join(part.info.name for part in parts)} failed")
        return best.draft

    async def release(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            for late in session.late.values():
                late.task.cancel()
            if session.late:
                await asyncio.wait([late.task for late in session.late.values()])
            session.score(len(session.view.tokens))
        await _each([drafter.release(session_id) for drafter in self._drafters])

    async def close(self) -> None:
        for session_id in list(self._sessions):
            await self.release(session_id)
        await _each([drafter.close() for drafter in self._drafters])

    def cache_bytes(self) -> int:
        """Memory of what its parts keep of earlier outputs."""
        parts = self._drafters
        return sum(part.cache_bytes() for part in parts if isinstance(part, CachingDrafter))

    async def _meet(self) -> tuple[Part, ...]:
        if not self._parts:
            infos = [await drafter.describe() for drafter in self._drafters]
            names = [info.name for info in infos]
            if len(set(names)) < len(names):
                raise ConfigError(
                    f"mixed has two parts named {max(names, key=names.count)!r}; name each once"
                )
            self._parts = tuple(
                Part(drafter, info, self._deadline_s, self._clock)
                for drafter, info in zip(self._drafters, infos, strict=True)
            )
        return self._parts

    def _follow(self, view: SessionView) -> MixedSession:
        """Take over what was committed, and how long it took."""
        now = self._clock()
        session = self._sessions.get(view.session_id)
        if session is None:
            session = self._sessions[view.session_id] = MixedSession(view, now)
        self._time_s += min(now - session.began_s, _LONGEST_S)
        session.began_s = now
        if 0 < view.length - session.view.length <= session.given + 1:  # one round, as it seems
            elapsed_s = now - session.given_s
            before = elapsed_s if self._round_s is None else self._round_s
            self._round_s = before + _SMOOTHING * (elapsed_s - before)
        session.view = view
        session.arrived()
        session.score(view.length)
        return session

    def _choose(self, session: MixedSession, best: Chance, max_tokens: int) -> _Asked | None:
        """The model to ask in this round, and for how much; None if none is worth its time."""
        ready = [
            (part, room)
            for part in self._parts
            if not part.free
            and part not in session.late
            and (room := part.room(session.view, max_tokens)) > 0
            and part.usable()
        ]
        found: _Asked | None = None
        most = self._rate(best.expected, 0.0)
        for part, room in ready:
            for count, expected in enumerate(part.odds.expected(best.bucket, room)):
                rate = self._rate(expected, part.time.seconds(count))
                if count and rate > most:
                    found, most = _Asked(part, count), rate
        if found is None and ready:
            part, room = min(ready, key=lambda pair: pair[0].odds.tried(best.bucket))
            count = min(room, _EXPLORE_TOKENS)
            if self._explored_s + part.time.seconds(count) <= _EXPLORED * self._time_s:
                found = _Asked(part, count, exploring=True)
        return found

    def _rate(self, expected: float, draft_s: float) -> float:
        """Tokens per second of a round; tokens alone while it is not known how long rounds take."""
        if self._round_s is None:
            return 1 + expected
        return (1 + expected) / (self._round_s + draft_s)

    async def _ask_free(self, part: Part, session: MixedSession, max_tokens: int) -> Chance | None:
        room = part.room(session.view, max_tokens)
        if room < 1 or not part.usable():
            return None
        try:
            draft = await part.drafter.propose(session.view, room)
        except Exception as error:  # whatever one part does, the others go on
            part.ended(error)
            return None
        part.ended(None)
        return session.note(part, bucket_of(draft.match or len(draft)), session.view.length, draft)

    async def _ask(self, asked: _Asked, session: MixedSession, bucket: int) -> Chance | None:
        """A model's draft, if it comes in time; one that does not is scored when it comes."""
        part, view = asked.part, session.view
        sudden = view.length - session.read.get(part, 0) <= _UNREAD
        session.read[part] = view.length
        began_s = self._clock()
        task = asyncio.ensure_future(part.drafter.propose(view, asked.num_tokens))
        session.late[part] = Late(task, view.length, bucket)
        wait_s = part.wait_s(asked.num_tokens)
        await asyncio.wait([task], timeout=wait_s)
        seconds = self._clock() - began_s
        if asked.exploring:
            self._explored_s += seconds
        if sudden or not part.time.known:
            part.time.observe(asked.num_tokens, seconds)
        if sudden and task.done():
            part.pace.took(seconds, asked.num_tokens)
        elif sudden:
            part.pace.gave_up(seconds, asked.num_tokens)
        arrived = session.arrived()
        return next((chance for chance in arrived if chance.part is part), None)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A model that is asked for so many tokens; `exploring`: only to learn how it does."""

    part: Part
    num_tokens: int
    exploring: bool = False


async def _each(calls: Sequence[Awaitable[None]]) -> None:
    """Have all done, also if one fails; then tell of the failure."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
