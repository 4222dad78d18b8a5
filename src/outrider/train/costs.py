"""What steps of target and draft take, measured in turn on the engine that serves them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from outrider.engine import Feed, KVCache, Lane, StepInfo
from outrider.sampling import History
from outrider.sampling.device import sampler_on
from outrider.train.candidates import Candidate
from outrider.train.model_candidate import ModelCandidate
from outrider.train.reading import ReadingJob, run_job
from outrider.train.replay_candidate import ReplayCandidate
from outrider.types import SamplingParams

__all__ = ["Costs", "measure_costs"]

F64 = npt.NDArray[np.float64]
Draw = Callable[[torch.Tensor], object]


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Seconds, measured `repeats` times each, interleaved; a step ends with drawing its tokens.

    Attributes:
        context: tokens in front of each step.
        target_s: float64 [repeats, K + 1], steps of the target over 1..K + 1 tokens.
        token_s: float64 [repeats] by draft, for each drafted token.
        round_s: float64 [repeats] by draft, once for each draft that is asked for.
    """

    context: int
    target_s: F64
    token_s: dict[str, F64]
    round_s: dict[str, F64]


async def measure_costs(
    lane: Lane,
    candidates: Sequence[Candidate],
    text: Sequence[int],
    context: int,
    params: SamplingParams,
    *,
    lookahead: int,
    repeats: int,
) -> Costs:
    """Measure behind the first `context` tokens of `text`.

    Args:
        lane: the target's.
        text: of the target's ids, at least `context + lookahead + 1`.
        params: how tokens are drawn.

    Raises:
        TargetFailed: the engine failed.
        Overloaded, ContextLengthExceeded: there is no room for the text.
    """
    models = [each for each in candidates if isinstance(each, ModelCandidate)]
    sampler = sampler_on(lane.decoder.device)(params, 0)
    history = History(text[:context])
    # A warm-up goes before each of them.
    target_s = np.zeros((repeats + 1, lookahead + 1))
    token_s = {each.name: np.zeros(repeats + 1) for each in candidates}
    steps = _Steps(lane, text, context, lambda row: sampler.sample(row, history))
    drafts = [_draft_steps(each, text, context, params) for each in models]
    everyone = [steps, *(each for each in drafts)]
    opened: list[_Steps] = []
    try:
        for each in everyone:
            await each.open(lookahead + 1)
            opened.append(each)
        for repeat in range(repeats + 1):
            for rows in range(1, lookahead + 2):
                target_s[repeat, rows - 1] = await steps.seconds(rows)
            for model, draft in zip(models, drafts, strict=True):
                token_s[model.name][repeat] = await draft.seconds(1)
    finally:
        for each in opened:
            await each.close()
    return Costs(
        context,
        target_s[1:],
        {name: seconds[1:] for name, seconds in token_s.items()},
        {each.name: _asking(each, repeats) for each in candidates},
    )


def _asking(candidate: Candidate, repeats: int) -> F64:
    if isinstance(candidate, ReplayCandidate) and candidate.seconds:
        return np.full(repeats, float(np.median(candidate.seconds)))
    return np.zeros(repeats)


def _draft_steps(
    candidate: ModelCandidate, text: Sequence[int], context: int, params: SamplingParams
) -> _Steps:
    ids, ends = candidate.context(text, context)
    sampler = candidate.sampler(params)
    history = History(text[:context])
    longest = candidate.lane.cache.max_length - 1
    return _Steps(
        candidate.lane,
        ids,
        min(int(ends[context]), longest),
        lambda row: sampler.sample(candidate.row(row), history),
    )


class _Steps:
    """Steps of one model behind a text, each as if it were the next."""

    def __init__(self, lane: Lane, text: Sequence[int], context: int, draw: Draw) -> None:
        self._lane, self._text, self._context, self._draw = lane, text, context, draw
        self._slot = -1

    async def open(self, most: int) -> None:
        room = min(self._context + most, self._lane.cache.max_length)
        self._slot = (await self._lane.open((), room, "")).slot
        if self._context:
            await run_job(self._lane, _ReadOnly(self._slot, [Feed(self._text[: self._context], 0)]))

    async def seconds(self, rows: int) -> float:
        """One step over `rows` tokens, forgotten again."""
        next_ids = self._text[self._context : self._context + rows]
        job = _Timed(self._slot, next_ids, self._draw, self._lane.cache, self._context)
        await run_job(self._lane, job)
        return job.seconds

    async def close(self) -> None:
        await self._lane.close(self._slot)


class _ReadOnly(ReadingJob):
    """Reads, and wants no rows."""

    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        """None were asked for."""


class _Timed(ReadingJob):
    def __init__(
        self, slot: int, token_ids: Sequence[int], draw: Draw, cache: KVCache, context: int
    ) -> None:
        super().__init__(slot, [Feed(token_ids, len(token_ids))])
        self.seconds = 0.0
        self._draw, self._cache, self._context = draw, cache, context

    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        began = time.perf_counter()
        for row in logits:
            self._draw(row)
        self.seconds = step.seconds + time.perf_counter() - began
        self._cache.truncate(self.slot, self._context)
