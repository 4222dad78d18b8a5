"""Bounded admission: so many choices run, so many requests wait in order, the rest is refused."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence

from outrider.errors import Overloaded
from outrider.metrics import Metrics

__all__ = ["Admission", "Slot"]


class Slot:
    """The right of one choice to run, once `wait` has returned and until `release`."""

    __slots__ = ("_admission", "_request", "_tokens", "_turn")

    def __init__(
        self, admission: Admission, request: object, tokens: int, turn: asyncio.Future[None]
    ) -> None:
        self._admission = admission
        self._request = request
        self._tokens = tokens
        self._turn = turn

    async def wait(self) -> None:
        """Return when it is this choice's turn."""
        # Shielded, so that a cancelled waiter does not decide the state: `release` alone does.
        await asyncio.shield(self._turn)

    def release(self) -> None:
        """Give the slot, or the place in the queue, back. Doing so again changes nothing."""
        self._admission.release(self)

    @property
    def request(self) -> object:
        """Equal for the slots of one request."""
        return self._request

    @property
    def tokens(self) -> int:
        """Prompt and output tokens that the choice may come to."""
        return self._tokens

    @property
    def turn(self) -> asyncio.Future[None]:
        """Done once the slot may be used."""
        return self._turn


class Admission:
    """Decides who runs now, who waits and who is refused. For one event loop.

    A choice runs when a place is free and the target has room for its tokens. The order is kept, so
    that a large one at the head of the queue is not overtaken for ever by small ones. A request
    waits while any of its choices has no slot yet. One that finds a free slot is admitted whatever
    the queue allows, so a request never counts more than once.

    Args:
        max_running: choices that run at a time.
        max_queued: requests that wait.
        max_tokens: tokens that all running choices together may come to; None sets no bound.
        metrics: its gauges `running` and `queued` follow.
    """

    def __init__(
        self,
        *,
        max_running: int,
        max_queued: int,
        metrics: Metrics,
        max_tokens: int | None = None,
    ) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._max_tokens = max_tokens
        self._tokens = 0  # of those that run
        self._metrics = metrics
        self._held: set[Slot] = set()
        self._queue: deque[Slot] = deque()
        self._waiting: Counter[object] = Counter()

    def check(self) -> None:
        """Raise `Overloaded` if a request that came now would be refused, whatever its size."""
        self._check(0)

    def enter(self, sizes: Sequence[int]) -> Sequence[Slot]:
        """Admit a request: one slot per choice, each free at once or queued.

        Args:
            sizes: tokens that each choice may come to, none over `max_tokens`.

        Raises:
            Overloaded: nothing of it can run now, and the queue is full.
        """
        self._check(sizes[0])
        request = object()
        loop = asyncio.get_running_loop()
        slots = [Slot(self, request, tokens, loop.create_future()) for tokens in sizes]
        self._queue.extend(slots)
        self._waiting[request] = len(slots)
        self._serve()
        return slots

    def release(self, slot: Slot) -> None:
        """See `Slot.release`."""
        if slot in self._held:
            self._held.discard(slot)
            self._tokens -= slot.tokens
        elif slot in self._queue:
            self._queue.remove(slot)
            self._leave_queue(slot)
        self._serve()

    def _serve(self) -> None:
        while self._queue and self._fits(self._queue[0].tokens):
            slot = self._queue.popleft()
            self._leave_queue(slot)
            self._held.add(slot)
            self._tokens += slot.tokens
            slot.turn.set_result(None)
        self._metrics.running.set(len(self._held))
        self._metrics.queued.set(len(self._waiting))

    def _check(self, tokens: int) -> None:
        waits = bool(self._queue) or not self._fits(tokens)
        if waits and len(self._waiting) >= self._max_queued:
            raise Overloaded(
                f"{len(self._held)} choices run and {len(self._waiting)} requests wait, "
                "which is all that this server takes; try again later"
            )

    def _fits(self, tokens: int) -> bool:
        """Whether one more choice can run."""
        room = self._max_tokens is None or self._tokens + tokens <= self._max_tokens
        return room and len(self._held) < self._max_running

    def _leave_queue(self, slot: Slot) -> None:
        self._waiting[slot.request] -= 1
        if self._waiting[slot.request] == 0:
            del self._waiting[slot.request]
