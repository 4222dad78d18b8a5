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

    __slots__ = ("_admission", "_request", "_turn")

    def __init__(self, admission: Admission, request: object, turn: asyncio.Future[None]) -> None:
        self._admission = admission
        self._request = request
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
    def turn(self) -> asyncio.Future[None]:
        """Done once the slot may be used."""
        return self._turn


class Admission:
    """Decides who runs now, who waits and who is refused. For one event loop.

    A request waits while any of its choices has no slot yet. One that finds a free slot is admitted
    whatever the queue allows, so a request never counts more than once.

    Args:
        max_running: choices that run at a time.
        max_queued: requests that wait.
        metrics: its gauges `running` and `queued` follow.
    """

    def __init__(self, *, max_running: int, max_queued: int, metrics: Metrics) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._metrics = metrics
        self._held: set[Slot] = set()
        self._queue: deque[Slot] = deque()
        self._waiting: Counter[object] = Counter()

    def check(self) -> None:
        """Raise `Overloaded` if a request that came now would be refused."""
        full = len(self._held) >= self._max_running or bool(self._queue)
        if full and len(self._waiting) >= self._max_queued:
            raise Overloaded(
                f"{len(self._held)} choices run and {len(self._waiting)} requests wait, "
                "which is all that this server takes; try again later"
            )

    def enter(self, choices: int) -> Sequence[Slot]:
        """Admit a request: one slot per choice, each free at once or queued.

        Raises:
            Overloaded: all slots are taken and the queue is full.
        """
        self.check()
        request = object()
        loop = asyncio.get_running_loop()
        slots = [Slot(self, request, loop.create_future()) for _ in range(choices)]
        self._queue.extend(slots)
        self._waiting[request] = choices
        self._serve()
        return slots

    def release(self, slot: Slot) -> None:
        """See `Slot.release`."""
        if slot in self._held:
            self._held.discard(slot)
        elif slot in self._queue:
            self._queue.remove(slot)
            self._leave_queue(slot)
        self._serve()

    def _serve(self) -> None:
        while self._queue and len(self._held) < self._max_running:
            slot = self._queue.popleft()
            self._leave_queue(slot)
            self._held.add(slot)
            slot.turn.set_result(None)
        self._metrics.running.set(len(self._held))
        self._metrics.queued.set(len(self._waiting))

    def _leave_queue(self, slot: Slot) -> None:
        self._waiting[slot.request] -= 1
        if self._waiting[slot.request] == 0:
            del self._waiting[slot.request]
