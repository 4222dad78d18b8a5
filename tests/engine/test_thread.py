"""Whose step comes next on the engine's thread, over a clock that the steps move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from outrider.engine import EngineThread

pytestmark = pytest.mark.anyio


class Clock:
    """Seconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Working:
    """Takes so many seconds for each of so many steps."""

    def __init__(self, clock: Clock, name: str, log: list[str], *, seconds: float, steps: int):
        self._clock, self._name, self._log = clock, name, log
        self._seconds, self._steps = seconds, steps
        self.then: Callable[[], None] | None = None

    @property
    def busy(self) -> bool:
        return self._steps > 0

    def step(self) -> None:
        self._steps -= 1
        self._clock.now += self._seconds
        self._log.append(self._name)
        if self.then is not None and len(self._log) == 20:
            self.then()

    def stop(self, error: Exception) -> None:
        self._steps = 0


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("outrider.engine.thread.time", SimpleNamespace(perf_counter=clock))
    return clock


async def test_models_get_equal_time_and_not_equal_steps(clock) -> None:
    engine = EngineThread()
    log: list[str] = []
    target = Working(clock, "target", log, seconds=8.0, steps=10)
    draft = Working(clock, "draft", log, seconds=1.0, steps=40)
    engine.post(lambda: (engine.add(target), engine.add(draft)))
    while len(log) < 50:
        await engine.call(lambda: None)
    engine.close()
    assert Counter(log[:45])["draft"] == 40  # eight for each of the target's


async def test_a_model_that_was_idle_does_not_make_up_for_it(clock) -> None:
    engine = EngineThread()
    log: list[str] = []
    target = Working(clock, "target", log, seconds=1.0, steps=60)
    late = Working(clock, "late", log, seconds=1.0, steps=60)
    target.then = lambda: engine.add(late)
    engine.add(target)
    while len(log) < 120:
        await engine.call(lambda: None)
    engine.close()
    assert set(log[:20]) == {"target"}
    assert 8 <= Counter(log[20:40])["late"] <= 12
