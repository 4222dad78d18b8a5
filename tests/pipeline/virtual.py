"""A pipeline in virtual time: waiting takes none, so what a deployment's times do can be computed.

The round loop, the controller and all that drafts ahead or beside are the real ones; target,
drafter and the trip between them only wait.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import selectors
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from outrider.config import load_settings
from outrider.drafters import SessionView
from outrider.metrics import Metrics
from outrider.pipeline import Pipeline
from outrider.targets import Opened, OpenRequest, Target
from outrider.types import (
    Draft,
    DrafterInfo,
    FinishReason,
    SampledDraft,
    SamplingParams,
    TargetInfo,
    Verification,
)

MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "synchronous": {"controller": "fixed", "ahead": "never", "lookahead": 4},
    "pipelined": {"controller": "fixed", "ahead": "always", "lookahead": 4},
    "controller": {"controller": "goodput"},
}
PROMPT_TOKENS = 500
RIGHT, WRONG = 0, 1


@dataclass(frozen=True)
class Deployment:
    """What everything takes, in seconds.

    Attributes:
        token_s: a step of the target over one token, and what each further one adds.
        draft_s: a draft's beginning, and each of its tokens.
        read_s: the drafter's way through a prompt.
        rtt_s: between gateway and target.
        noise: standard deviation of the logarithm of every time.
    """

    token_s: tuple[float, float]
    draft_s: tuple[float, float]
    read_s: float = 0.0
    rtt_s: float = 0.0
    noise: float = 0.1


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: what it would have waited is added to `now`."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "everything waits for something that never comes"
            self.now += max(timeout, 0.0)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


@contextmanager
def virtual_time() -> Iterator[VirtualLoop]:
    """A loop whose clock is everybody's."""
    loop, clock = VirtualLoop(), time.perf_counter
    time.perf_counter = loop.time
    try:
        yield loop
    finally:
        time.perf_counter = clock
        loop.close()


class _Target:
    """Says `RIGHT` for ever, which is what drafts are judged by."""

    def __init__(self, info: TargetInfo, deployment: Deployment, seed: int) -> None:
        self._info = info
        self._deployment = deployment
        self._noisy = _noise(deployment, seed)
        self._open: dict[str, OpenRequest] = {}

    async def describe(self) -> TargetInfo:
        return self._info

    def occupancy(self) -> tuple[int, int]:
        return len(self._open), 8

    def cache_use(self) -> None:
        return None

    async def open(self, request: OpenRequest) -> Opened:
        self._open[request.session_id] = request
        return Opened(cached_tokens=0)

    async def release(self, session_id: str) -> None:
        self._open.pop(session_id, None)

    async def close(self) -> None:
        """Nothing is held."""

    async def advance(
        self, session_id: str, round_id: int, position: int, draft: Draft | SampledDraft, run: int
    ) -> AsyncGenerator[Verification]:
        most = self._open[session_id].sampling.max_tokens
        first, further = self._deployment.token_s
        drafted = draft.token_ids
        await asyncio.sleep(self._deployment.rtt_s)
        for _ in range(run + 1):
            step_s = self._noisy(first + further * len(drafted))
            await asyncio.sleep(step_s)
            accepted = next((i for i, token in enumerate(drafted) if token != RIGHT), len(drafted))
            said = (RIGHT,) * min(accepted + 1, most - position)
            ends = position + len(said) == most
            yield Verification(
                round_id=round_id,
                position=position,
                token_ids=said,
                drafted=len(drafted),
                accepted=accepted,
                finish_reason=FinishReason.LENGTH if ends else None,
                step_s=step_s,
                batch_tokens=len(drafted) + 1,
            )
            if ends:
                return
            position, drafted = position + len(said), ()


class _Drafter:
    """Is right with a probability of each session's own, by a coin that hangs on the place."""

    def __init__(self, rates: list[float], deployment: Deployment, seed: int) -> None:
        self._rates = rates
        self._deployment = deployment
        self._noisy = _noise(deployment, seed)
        self._has_read: set[str] = set()

    async def describe(self) -> DrafterInfo:
        return DrafterInfo(name="virtual", ahead=True)

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        first, each = self._deployment.draft_s
        takes_s = first + each * max_tokens
        if view.session_id not in self._has_read:
            self._has_read.add(view.session_id)
            takes_s += self._deployment.read_s
        await asyncio.sleep(self._noisy(takes_s))
        which, start = 4 * view.tokens[0] + view.tokens[1], view.length + len(view.guess)
        return Draft(
            tuple(
                RIGHT if _coin(which, start + index) < self._rates[which] else WRONG
                for index in range(max_tokens)
            ),
            "virtual",
        )

    async def release(self, session_id: str) -> None:
        self._has_read.discard(session_id)

    async def close(self) -> None:
        """Nothing is held."""


def speeds(
    mode: str,
    deployment: Deployment,
    described: Target,
    *,
    rates: list[float],
    tokens: int = 80,
    seed: int = 0,
) -> list[float]:
    """Decode speeds of one session after the other, of a gateway that knew nothing before.

    Args:
        mode: of `MODES`.
        deployment: what everything takes.
        described: whose information the target gives.
        rates: by session, 16 at most, how likely a drafted token is right.
    """

    async def sessions() -> list[float]:
        info = await described.describe()
        target = _Target(info, deployment, seed)
        drafter = _Drafter(rates, deployment, seed + 1)
        settings = load_settings(None, {"speculation": {"deadline_ms": 2000} | MODES[mode]})
        drafters = {} if mode == "plain" else {"virtual": (drafter, await drafter.describe())}
        pipeline = Pipeline(target, info, drafters, settings, Metrics())
        return [await _decode(pipeline, which, tokens) for which in range(len(rates))]

    with virtual_time() as loop:
        return loop.run_until_complete(sessions())


async def _decode(pipeline: Pipeline, which: int, tokens: int) -> float:
    prompt = (which // 4, which % 4) + (RIGHT,) * (PROMPT_TOKENS - 2)
    session = pipeline.session(prompt, SamplingParams(temperature=0.0, max_tokens=tokens))
    began = None
    async with aclosing(pipeline.run(session)) as steps:
        async for _ in steps:
            began = time.perf_counter() if began is None else began
    assert began is not None
    return (tokens - 1) / (time.perf_counter() - began)


def _noise(deployment: Deployment, seed: int) -> Callable[[float], float]:
    rng = random.Random(seed)
    return lambda seconds: seconds * math.exp(rng.gauss(0.0, deployment.noise))


def _coin(*place: int) -> float:
    return int.from_bytes(hashlib.sha256(repr(place).encode()).digest()[:8], "big") / 2**64
