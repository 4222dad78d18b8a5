"""The sessions that a draft server holds: few, and each only as long as it is used."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from outrider.drafters import Drafter, SessionView
from outrider.errors import Overloaded
from outrider.types import SamplingParams

__all__ = ["Opening", "Session", "Sessions", "Superseded"]


class Superseded(Exception):
    """A later request for the same session came; nobody waits for this one's answer."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What is fixed when a session begins; the fields are those of `SessionView`."""

    prompt_length: int
    sampling: SamplingParams
    noise_key: int | None = None
    choice: int = 0
    tenant: str = ""


@dataclass(slots=True, eq=False)
class Session:
    """One sequence that is drafted for.

    Attributes:
        key: how the drafter knows it.
        opening: what was fixed when it began.
        tokens: prompt and committed output; only ever grows.
        running: the request that works on it.
        used_at: when the last one ended, by the clock of `Sessions`.
    """

    key: str
    opening: Opening
    tokens: list[int]
    running: asyncio.Task[object] | None = None
    used_at: float = 0.0

    def view(self, length: int, guess: Sequence[int]) -> SessionView:
        """What the drafter is shown."""
        opening = self.opening
        return SessionView(
            session_id=self.key,
            tokens=self.tokens,
            length=length,
            prompt_length=opening.prompt_length,
            sampling=opening.sampling,
            noise_key=opening.noise_key or 0,
            choice=opening.choice,
            tenant=opening.tenant,
            guess=tuple(guess),
        )


class Sessions:
    """Holds sessions by the names that callers give them. For one event loop.

    Args:
        drafter: is told of sessions that end.
        most: sessions held at a time; for a further one the idle one that was used least recently
            is given up.
        idle_s: seconds after which one that nobody asked for is given up.
        clock: in seconds.
    """

    def __init__(
        self, drafter: Drafter, *, most: int, idle_s: float, clock: Callable[[], float]
    ) -> None:
        self._drafter = drafter
        self._most = most
        self._idle_s = idle_s
        self._clock = clock
        self._held: OrderedDict[str, Session] = OrderedDict()  # least recently used first
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def get(self, name: str) -> Session | None:
        """The session, if it is held."""
        return self._held.get(name)

    async def begin(self, name: str, opening: Opening, tokens: list[int]) -> Session:
        """A new session. One that had its name is given up.

        Raises:
            Overloaded: there is no room for it, and no session is idle.
        """
        while name in self._held or len(self._held) >= self._most:  # others come while this waits
            if name in self._held:
                await self.end(name)
            elif not await self.give_up_idle():
                raise Overloaded(
                    f"{len(self._held)} sessions are being drafted for, which is all that this "
                    "server holds (engine.max_sessions); try again later"
                )
        session = Session(str(next(self._numbers)), opening, tokens)
        self._held[name] = session
        return session

    async def begin_nameless(self, opening: Opening, tokens: list[int]) -> tuple[str, Session]:
        """A new session that only its own request knows, and the name to end it by."""
        name = f"\0{next(self._numbers)}"  # callers' names are printable
        return name, await self.begin(name, opening, tokens)

    async def end(self, name: str) -> None:
        """Forget a session, and end the work on it. Unknown ones are ignored."""
        session = self._held.pop(name, None)
        if session is None:
            return
        if session.running is not None:
            _cancel(session)
        await self._drafter.release(session.key)

    async def give_up_idle(self) -> bool:
        """Forget the session that has been idle for longest; whether there was one."""
        for name, session in self._held.items():
            if session.running is None:
                await self.end(name)
                return True
        return False

    @contextmanager
    def turn(self, name: str, session: Session) -> Iterator[None]:
        """Around the work of one request on a session; a request before it is cut short.

        Raises:
            Superseded: a later request came meanwhile.
        """
        task = asyncio.current_task()
        if session.running is not None:
            _cancel(session)
        session.running = task
        try:
            yield
        except asyncio.CancelledError:
            if session.running is task or task is None:
                raise
            task.uncancel()
            raise Superseded from None
        finally:
            if session.running is task:
                session.running = None
            session.used_at = self._clock()
            if self._held.get(name) is session:
                self._held.move_to_end(name)
                self._schedule()

    async def close(self) -> None:
        """End all."""
        if self._timer is not None:
            self._timer.cancel()
        for name in list(self._held):
            await self.end(name)

    def _schedule(self) -> None:
        """See to it that the next session to expire does."""
        if self._timer is not None:
            return
        idle = [session.used_at for session in self._held.values() if session.running is None]
        if idle:
            wait_s = max(min(idle) + self._idle_s - self._clock(), 0.01)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._expiry = asyncio.create_task(self._end_idle())

    async def _end_idle(self) -> None:
        before = self._clock() - self._idle_s
        for name, session in list(self._held.items()):
            if session.running is None and session.used_at <= before:
                await self.end(name)
        self._schedule()


def _cancel(session: Session) -> None:
    """Cut short the work on a session; it finds that the session is no longer its own."""
    task, session.running = session.running, None
    if task is not None:
        task.cancel()
