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
    first, *_ = gate.enter([1])
    waiting = [gate.enter([1])[0], gate.enter([1])[0]]
    with pytest.raises(Overloaded, match="1 choices run and 2 requests wait"):
        gate.enter([1])
    assert gauges(metrics) == (1, 2)
    await first.wait()
    first.release()
    assert waiting[0].turn.done()
    assert not waiting[1].turn.done()
    assert gauges(metrics) == (1, 1)


async def test_many_choices_count_as_one_waiting_request() -> None:
    gate, metrics = admission(2, 1)
    slots = gate.enter([1] * 5)
    assert gauges(metrics) == (2, 1)
    with pytest.raises(Overloaded):
        gate.enter([1])
    for slot in slots:
        slot.release()
    assert gauges(metrics) == (0, 0)


async def test_without_a_queue_a_free_slot_still_admits() -> None:
    gate, metrics = admission(1, 0)
    slot, *_ = gate.enter([1])
    with pytest.raises(Overloaded):
        gate.enter([1])
    slot.release()
    gate.enter([1])
    assert gauges(metrics) == (1, 0)


async def test_a_slot_released_twice_is_freed_once() -> None:
    gate, metrics = admission(2, 5)
    first, second = gate.enter([1] * 2)
    first.release()
    first.release()
    gate.enter([1] * 3)
    assert gauges(metrics) == (2, 1)
    second.release()
    assert gauges(metrics) == (2, 1)


async def test_a_cancelled_waiter_leaves_the_queue() -> None:
    gate, metrics = admission(1, 1)
    held, *_ = gate.enter([1])
    queued, *_ = gate.enter([1])
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
    held, *_ = gate.enter([1])
    queued, *_ = gate.enter([1])
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
                present += gate.enter([1] * draw.randint(1, 6))
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


def by_tokens(tokens: int, *, running: int = 10, queued: int = 10) -> tuple[Admission, Metrics]:
    metrics = Metrics()
    gate = Admission(max_running=running, max_queued=queued, metrics=metrics, max_tokens=tokens)
    return gate, metrics


async def test_a_choice_waits_for_the_room_that_its_tokens_need() -> None:
    gate, metrics = by_tokens(100)
    first, second = gate.enter([60, 40])
    (third,) = gate.enter([50])
    assert gauges(metrics) == (2, 1)
    second.release()
    assert not third.turn.done()
    first.release()
    assert third.turn.done()
    assert gauges(metrics) == (1, 0)


async def test_a_large_choice_at_the_head_is_not_overtaken_by_small_ones() -> None:
    gate, _ = by_tokens(100)
    (first,) = gate.enter([60])
    (large,) = gate.enter([90])
    (small,) = gate.enter([10])
    assert not small.turn.done()
    large.release()  # its client gave up
    assert small.turn.done()
    first.release()


async def test_without_a_queue_what_finds_no_room_is_refused() -> None:
    gate, metrics = by_tokens(100, queued=0)
    (slot,) = gate.enter([60])
    gate.check()  # a small one would fit
    with pytest.raises(Overloaded, match="1 choices run and 0 requests wait"):
        gate.enter([41])
    gate.enter([40])[0].release()
    slot.release()
    assert gauges(metrics) == (0, 0)


async def test_any_order_of_sizes_keeps_the_room_and_lets_everybody_run() -> None:
    gate, metrics = by_tokens(100, running=4, queued=1000)
    draw = random.Random(6)
    waiting: list[Slot] = []
    running: list[Slot] = []
    finished = 0
    for _ in range(500):
        waiting += gate.enter([draw.randint(1, 100) for _ in range(draw.randint(1, 3))])
        for _ in range(3):
            running += [slot for slot in waiting if slot.turn.done()]
            waiting = [slot for slot in waiting if not slot.turn.done()]
            assert sum(slot.tokens for slot in running) <= 100
            assert 1 <= len(running) <= 4
            running.pop(draw.randrange(len(running))).release()
            finished += 1
            if not (running or waiting):
                break
    while waiting or running:
        running += [slot for slot in waiting if slot.turn.done()]
        waiting = [slot for slot in waiting if not slot.turn.done()]
        running.pop().release()
    assert gauges(metrics) == (0, 0)
