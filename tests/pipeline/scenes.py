"""Scripted targets and drafters for the round loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import numpy as np

from outrider.config import Settings, load_settings
from outrider.drafters import Drafter, SessionView
from outrider.errors import SessionLost
from outrider.metrics import Metrics
from outrider.models import TableModel
from outrider.pipeline import Pipeline, Session
from outrider.sampling import History, TokenSampler, noise_key
from outrider.targets import Opened, OpenRequest, TableTarget, Target
from outrider.types import Draft, DrafterInfo, SamplingParams

PROMPT = (0, 1)
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)


def settings(**speculation: object) -> Settings:
    # The default controller decides by times, which no test should hang on.
    return load_settings(None, {"speculation": {"controller": "window"} | speculation})


def table_target(file: Path, *, max_sessions: int = 32) -> TableTarget:
    return TableTarget(TableModel.load(file), model_id=file.stem, max_sessions=max_sessions)


async def pipeline_over(
    target: Target, *drafters: Drafter, configured: Settings | None = None
) -> Pipeline:
    described = [(drafter, await drafter.describe()) for drafter in drafters]
    return Pipeline(
        target,
        await target.describe(),
        {info.name: (drafter, info) for drafter, info in described},
        configured or settings(),
        Metrics(),
    )


async def run(pipeline: Pipeline, session: Session) -> tuple[int, ...]:
    async with aclosing(pipeline.run(session)) as steps:
        return tuple([token async for step in steps for token in step.token_ids])


def alone(
    file: Path, prompt: Sequence[int], sampling: SamplingParams, choice: int = 0
) -> tuple[int, ...]:
    """What the target alone says: a loop over its table, without any of the machinery."""
    model = TableModel.load(file)
    ends = sampling.end_token_ids(model.eos_token_ids)
    sampler = TokenSampler(sampling, noise_key(sampling.seed), choice, end_token_ids=ends)
    output: list[int] = []
    while len(output) < sampling.max_tokens and not ends.intersection(output[-1:]):
        history = History(prompt, output)  # anew for every token
        logits = np.array(model.logits(history.tokens, len(history)))
        output.append(sampler.sample(logits, history))
    return tuple(output)


def right(file: Path) -> Callable[[SessionView, int], Sequence[int]]:
    """A script that always drafts what the target will say, greedily, behind `PROMPT`."""
    output = alone(file, PROMPT, GREEDY)
    return lambda view, k: output[view.length - len(PROMPT) :][:k]


class ScriptedDrafter:
    """Drafts what `script` says of a view: tokens, an exception, or seconds to wait."""

    def __init__(
        self,
        script: Callable[[SessionView, int], Sequence[int] | Exception | float],
        *,
        name: str = "scripted",
        context_length: int | None = None,
        ahead: bool = False,
    ) -> None:
        self._script = script
        self._info = DrafterInfo(name=name, context_length=context_length, ahead=ahead)
        self.asked: list[tuple[int, int]] = []
        self.released: list[str] = []
        self.called = asyncio.Event()
        self.closed = False

    async def describe(self) -> DrafterInfo:
        return self._info

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        self.asked.append((view.length, max_tokens))
        self.called.set()
        said = self._script(view, max_tokens)
        if isinstance(said, Exception):
            raise said
        if isinstance(said, float):
            await asyncio.sleep(said)
            said = ()
        return Draft(tuple(said), self._info.name)

    async def release(self, session_id: str) -> None:
        self.released.append(session_id)

    async def close(self) -> None:
        self.closed = True


class ForgetfulTarget:
    """A target that loses the session in the rounds named."""

    def __init__(self, inner: TableTarget, lost_rounds: set[int]) -> None:
        self._inner = inner
        self._lost_rounds = lost_rounds
        self.opened: list[OpenRequest] = []

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    async def open(self, request: OpenRequest) -> Opened:
        self.opened.append(request)
        return await self._inner.open(request)

    async def advance(self, session_id, round_id, position, draft, run):
        if round_id in self._lost_rounds:
            await self._inner.release(session_id)
            raise SessionLost(f"{session_id} was forgotten")
        async with aclosing(
            self._inner.advance(session_id, round_id, position, draft, run)
        ) as answers:
            async for answer in answers:
                yield answer


class SlowTarget(ForgetfulTarget):
    """A target that takes a while for every answer."""

    def __init__(self, inner: TableTarget, delay_s: float) -> None:
        super().__init__(inner, set())
        self._delay_s = delay_s

    async def advance(self, session_id, round_id, position, draft, run):
        async with aclosing(super().advance(session_id, round_id, position, draft, run)) as answers:
            async for answer in answers:
                await asyncio.sleep(self._delay_s)
                yield answer
