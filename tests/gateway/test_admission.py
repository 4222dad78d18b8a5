"""Bounded admission."""

from __future__ import annotations

import asyncio
import random

import pytest

from outrider.errors import Overloaded
from outrider.gateway.admission import Admission, Slot
from outrider.metrics import Metrics

pytestmark = pytest.mark.anyio


def gauges(metrics: Metrics) -> tuple[float | None, float | None]:
    read = metrics.registry.get_sample_value
    return read("outrider_running"), read("outrider_queued")


def admission(running: int, queued: int) -> tuple[Admission, Metrics]:
    metrics = Metrics()
    return Admission(max_running=running, max_queued=queued, metrics=metrics), metrics


async def test_requests_run_wait_and_are_refused_in_this_order() -> None:
    gate, metrics = admission(1, 2)
    first, *_ = gate.enter(1)
    waiting = [gate.enter(1)[0], gate.enter(1)[0]]
    with pytest.raises(Overloaded, match="1 choices run and 2 requests wait"):
        gate.enter(1)
    assert gauges(metrics) == (1, 2)
    await first.wait()
    first.release()
    assert waiting[0].turn.done()
    assert not waiting[1].turn.done()
    assert gauges(metrics) == (1, 1)


async def test_many_choices_count_as_one_waiting_request() -> None:
    gate, metrics = admission(2, 1)
    slots = gate.enter(5)
    assert gauges(metrics) == (2, 1)
    with pytest.raises(Overloaded):
        gate.enter(1)
    for slot in slots:
        slot.release()
    assert gauges(metrics) == (0, 0)


async def test_without_a_queue_a_free_slot_still_admits() -> None:
    gate, metrics = admission(1, 0)
    slot, *_ = gate.enter(1)
    with pytest.raises(Overloaded):
        gate.enter(1)
    slot.release()
    gate.enter(1)
    assert gauges(metrics) == (1, 0)


async def test_a_slot_released_twice_is_freed_once() -> None:
    gate, metrics = admission(2, 5)
    first, second = gate.enter(2)
    first.release()
    first.release()
    gate.enter(3)
    assert gauges(metrics) == (2, 1)
    second.release()
    assert gauges(metrics) == (2, 1)


async def test_a_cancelled_waiter_leaves_the_queue() -> None:
    gate, metrics = admission(1, 1)
    held, *_ = gate.enter(1)
    queued, *_ = gate.enter(1)
    task = asyncio.create_task(queued.wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    queued.release()
    assert gauges(metrics) == (1, 0)
    held.release()
    assert gauges(metrics) == (0, 0)


async def test_a_waiter_cancelled_as_its_turn_comes_loses_no_slot() -> None:
    gate, metrics = admission(1, 1)
    held, *_ = gate.enter(1)
    queued, *_ = gate.enter(1)
    task = asyncio.create_task(queued.wait())
    await asyncio.sleep(0)
    held.release()
    task.cancel()
    await asyncio.wait([task])
    queued.release()
    assert gauges(metrics) == (0, 0)


async def test_any_order_of_arrivals_and_departures_keeps_the_bounds() -> None:
    gate, metrics = admission(4, 3)
    draw = random.Random(5)
    present: list[Slot] = []
    for _ in range(500):
        if draw.random() < 0.5:
            try:
                present += gate.enter(draw.randint(1, 6))
            except Overloaded:
                continue
        elif present:
            present.pop(draw.randrange(len(present))).release()
        running, queued = gauges(metrics)
        assert running == min(4, len(present))
        assert queued is not None
        assert queued <= 4  # three that found the queue, one that had a slot at once
        assert sum(slot.turn.done() for slot in present) == running
    for slot in present:
        slot.release()
    assert gauges(metrics) == (0, 0)
