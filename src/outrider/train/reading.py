"""A model reads text as it stands, on the engine's thread, and its rows are looked at."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import torch

from outrider.engine import Feed, Job, Lane, StepInfo
from outrider.errors import OutriderError, TargetFailed

__all__ = ["Look", "read", "run_job"]

Look = Callable[[int, torch.Tensor], None]
"""Gets a place in the text, and the row of logits behind the token there: float32 [V], not to be
kept. Called on the engine's thread."""

_ROWS: Final = 64
"""Rows that one pass gives at most: a row of a large vocabulary is half a megabyte."""


async def read(lane: Lane, token_ids: Sequence[int], places: Sequence[int], look: Look) -> None:
    """Let the model read `token_ids`, and look at its rows behind the tokens at `places`.

    Args:
        lane: the model, with room for the text.
        token_ids: in the model's own ids.
        places: indices into them, ascending, each once; nothing behind the last is read.
        look: called for each place, in their order.

    Raises:
        TargetFailed: the engine failed.
        Overloaded, ContextLengthExceeded, RequestError: the text does not fit, or has an impossible
            id.
    """
    if not places:
        return
    # Nothing is taken over, so that every text is read alike.
    opening = await lane.open((), places[-1] + 1, "")
    try:
        await run_job(lane, _Reading(opening.slot, token_ids, places, look))
    finally:
        await lane.close(opening.slot)


async def run_job(lane: Lane, job: ReadingJob) -> None:
    """See a job to its end. Raises what it failed with; a foreign error as TargetFailed."""
    lane.submit(job)
    try:
        await job.ended
    except OutriderError:
        raise
    except Exception as error:
        raise TargetFailed(f"the engine failed: {error}") from error
    finally:
        job.cancel()


class ReadingJob(Job):
    """A job with a known list of feeds.

    Attributes:
        ended: settled when all feeds are done.
    """

    def __init__(self, slot: int, feeds: Sequence[Feed]) -> None:
        super().__init__(slot)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._feeds = deque(feeds)

    def feed(self) -> Feed | None:
        if self._feeds:
            return self._feeds.popleft()
        self.tell(self._settle)
        return None

    def fail(self, error: Exception) -> None:
        self.tell(self._settle, error)

    def _settle(self, error: Exception | None = None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


class _Reading(ReadingJob):
    def __init__(
        self, slot: int, token_ids: Sequence[int], places: Sequence[int], look: Look
    ) -> None:
        groups = _groups(places)
        starts = [0, *(group[-1] + 1 for group in groups)]
        feeds = [
            Feed(token_ids[start:end], end - group[0])
            for (start, end), group in zip(pairwise(starts), groups, strict=True)
        ]
        super().__init__(slot, feeds)
        self._groups = deque(groups)
        self._look = look

    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        group = self._groups.popleft()
        for place in group:
            self._look(place, logits[place - group[0]])


def _groups(places: Sequence[int]) -> list[Sequence[int]]:
    """The places in runs that lie within `_ROWS` of their first."""
    groups = []
    start = 0
    for index, place in enumerate(places):
        if place - places[start] >= _ROWS:
            groups.append(places[start:index])
            start = index
    return [*groups, places[start:]]
