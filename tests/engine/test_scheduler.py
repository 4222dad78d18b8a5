"""The engine's thread: jobs share steps, long feeds are cut, one job's fault is not the others'."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import torch

from outrider.engine import EngineThread, Feed, Job, Lane, StepInfo
from outrider.errors import Overloaded, SessionLost, StaleRound, TargetFailed
from tests.tiny import CONTEXT, next_logits, tiny_decoder, tiny_lane

pytestmark = pytest.mark.anyio


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    engine = EngineThread(threads=1)
    yield engine
    engine.close()


@pytest.fixture
def lane(engine: EngineThread) -> Lane:
    return tiny_lane(engine, tiny_decoder())


async def take(lane: Lane) -> int:
    """A slot for a sequence that may come to any length."""
    return (await lane.open((), CONTEXT, "")).slot


class Feeding(Job):
    """Feeds each of `feeds` in turn and keeps the logits it gets."""

    def __init__(self, slot: int, feeds: Sequence[Feed], *, fail_in_take: bool = False) -> None:
        super().__init__(slot)
        self._feeds = list(feeds)
        self._fail_in_take = fail_in_take
        self.logits: list[torch.Tensor] = []
        self.steps: list[StepInfo] = []
        self.error: Exception | None = None
        self.done = threading.Event()

    def feed(self) -> Feed | None:
        if not self._feeds:
            self.done.set()
            return None
        return self._feeds.pop(0)

    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        if self._fail_in_take:
            raise ValueError("no taste")
        self.logits.append(logits)
        self.steps.append(step)

    def fail(self, error: Exception) -> None:
        self.error = error
        self.done.set()

    async def finished(self) -> None:
        assert await asyncio.to_thread(self.done.wait, 10)


async def test_a_job_gets_the_logits_of_what_it_feeds(lane: Lane) -> None:
    job = Feeding(await take(lane), [Feed([1, 2, 3], 2), Feed([4], 1)])
    lane.submit(job)
    await job.finished()
    for found, tokens in zip(
        [*job.logits[0], *job.logits[1]], ([1, 2], [1, 2, 3], [1, 2, 3, 4]), strict=True
    ):
        torch.testing.assert_close(found, next_logits(lane.decoder, tokens), atol=1e-4, rtol=0)


async def test_a_long_feed_is_computed_in_pieces_with_the_same_result(engine) -> None:
    lane = tiny_lane(engine, tiny_decoder(), step_tokens=16)
    tokens = [index % 40 for index in range(200)]
    job = Feeding(await take(lane), [Feed(tokens, 5)])
    lane.submit(job)
    await job.finished()
    assert job.logits[0].shape[0] == 5
    torch.testing.assert_close(
        job.logits[0][-1], next_logits(lane.decoder, tokens), atol=1e-4, rtol=0
    )


async def test_a_long_prompt_does_not_hold_up_short_steps(engine) -> None:
    lane = tiny_lane(engine, tiny_decoder(), step_tokens=16)
    order: list[str] = []

    class Noting(Feeding):
        def take(self, logits: torch.Tensor, step: StepInfo) -> None:
            order.append("long" if len(self.steps) == 0 and self.slot == long_slot else "short")
            super().take(logits, step)

    long_slot, short_slot = await take(lane), await take(lane)
    long = Noting(long_slot, [Feed([1] * 240, 1)])
    short = Noting(short_slot, [Feed([2], 1)] * 8)
    lane.submit(long)
    lane.submit(short)
    await long.finished()
    await short.finished()
    assert order.index("long") >= 8


async def test_jobs_that_are_ready_share_a_step(engine) -> None:
    lane = tiny_lane(engine, tiny_decoder())
    jobs = [Feeding(await take(lane), [Feed([1, 2], 1)] * 3) for _ in range(4)]
    hold = threading.Event()
    engine.post(hold.wait)  # all are submitted before the first step
    for job in jobs:
        lane.submit(job)
    hold.set()
    for job in jobs:
        await job.finished()
    assert all(step.batch_size == 4 for job in jobs for step in job.steps)


async def test_a_step_waits_a_moment_for_those_of_the_step_before(engine) -> None:
    """Sessions that answered together come back one after another; they should not drift apart."""
    lane = tiny_lane(engine, tiny_decoder())
    lane._last = StepInfo(seconds=10.0, batch_size=2, num_tokens=2)  # a slow model: up to 4 ms
    one, two = [Feeding(await take(lane), [Feed([1], 1)]) for _ in range(2)]
    lane.submit(one)
    time.sleep(0.0005)  # noqa: ASYNC251 # the loop itself is late, as it is between two sessions
    lane.submit(two)
    await one.finished()
    await two.finished()
    assert [job.steps[0].batch_size for job in (one, two)] == [2, 2]


async def test_an_error_in_one_job_leaves_the_others_alone(lane: Lane) -> None:
    bad = Feeding(await take(lane), [Feed([1], 1)] * 2, fail_in_take=True)
    good = Feeding(await take(lane), [Feed([1], 1)] * 3)
    lane.submit(bad)
    lane.submit(good)
    await bad.finished()
    await good.finished()
    assert str(bad.error) == "no taste"
    assert len(good.logits) == 3


async def test_an_error_in_the_pass_fails_its_jobs_and_not_the_thread(lane, monkeypatch) -> None:
    forward = lane.decoder.forward

    def broken(chunks, cache):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(lane.decoder, "forward", broken)
    job = Feeding(await take(lane), [Feed([1], 1)])
    lane.submit(job)
    await job.finished()
    assert str(job.error) == "out of memory"
    monkeypatch.setattr(lane.decoder, "forward", forward)
    again = Feeding(job.slot, [Feed([1], 1)])
    lane.submit(again)
    await again.finished()
    assert again.error is None


async def test_a_cancelled_job_takes_no_further_step(lane: Lane) -> None:
    job = Feeding(await take(lane), [Feed([1], 1)] * 200)
    lane.submit(job)
    while not job.steps:  # noqa: ASYNC110 # there is no event for a step
        await asyncio.sleep(0)
    job.cancel()
    await lane.engine.call(lambda: None)
    seen = len(job.steps)
    await asyncio.sleep(0.02)
    assert len(job.steps) <= seen + 1
    assert not lane.busy


async def test_a_new_job_of_a_slot_replaces_the_old_one(lane: Lane) -> None:
    slot = await take(lane)
    old = Feeding(slot, [Feed([1], 1)] * 500)
    new = Feeding(slot, [Feed([2], 1)])
    lane.submit(old)
    lane.submit(new)
    await new.finished()
    assert new.error is None
    assert isinstance(old.error, StaleRound)


async def test_freeing_a_slot_drops_its_job(lane: Lane) -> None:
    slot = await take(lane)
    job = Feeding(slot, [Feed([1], 1)] * 500)
    lane.submit(job)
    await lane.close(slot)
    assert isinstance(job.error, SessionLost)
    assert not lane.busy
    assert lane.cache.num_free == 4


async def test_slots_run_out_with_a_clear_error(lane: Lane) -> None:
    for _ in range(4):
        await take(lane)
    with pytest.raises(Overloaded):
        await take(lane)


async def test_a_slot_whose_taker_was_cancelled_comes_back(lane: Lane) -> None:
    hold = threading.Event()
    lane.engine.post(hold.wait)
    takers = [asyncio.create_task(take(lane)) for _ in range(3)]
    await asyncio.sleep(0.01)
    for taker in takers:
        taker.cancel()
    hold.set()
    await asyncio.wait(takers)
    await asyncio.sleep(0)  # the thread's answers reach the loop, and the slots go back
    await lane.engine.call(lambda: None)
    await lane.engine.call(lambda: None)
    assert lane.cache.num_free == 4


async def test_two_models_take_turns_on_the_thread(engine) -> None:
    one, two = tiny_lane(engine, tiny_decoder(1)), tiny_lane(engine, tiny_decoder(2))
    jobs = [
        Feeding(await take(one), [Feed([1], 1)] * 20),
        Feeding(await take(two), [Feed([1], 1)] * 20),
    ]
    one.submit(jobs[0])
    two.submit(jobs[1])
    for job in jobs:
        await job.finished()
    assert [len(job.logits) for job in jobs] == [20, 20]


async def test_an_idle_engine_uses_no_processor_time(lane: Lane) -> None:
    await lane.engine.call(lambda: None)
    before = time.process_time()
    await asyncio.sleep(0.3)
    assert time.process_time() - before < 0.05


@pytest.mark.parametrize("step_tokens", [16, 32])
async def test_a_draft_larger_than_a_step_is_judged_all_the_same(engine, step_tokens) -> None:
    lane = tiny_lane(engine, tiny_decoder(), step_tokens=step_tokens)
    others = [Feeding(await take(lane), [Feed([1] * 20, 20)] * 50) for _ in range(3)]
    job = Feeding(await take(lane), [Feed([2] * 60, 60)])
    for each in [*others, job]:
        lane.submit(each)
    await job.finished()
    assert job.logits[0].shape[0] == 60


async def test_a_prompt_does_not_wait_for_all_longer_ones_before_it(engine) -> None:
    lane = tiny_lane(engine, tiny_decoder(), num_slots=5, step_tokens=32)
    order: list[int] = []

    class Noting(Feeding):
        def take(self, logits: torch.Tensor, step: StepInfo) -> None:
            order.append(self.slot)
            super().take(logits, step)

    jobs = [Noting(await take(lane), [Feed([1] * 240, 1)]) for _ in range(4)]
    jobs.append(Noting(await take(lane), [Feed([1] * 40, 1)]))
    hold = threading.Event()
    engine.post(hold.wait)
    for job in jobs:
        lane.submit(job)
    hold.set()
    for job in jobs:
        await job.finished()
    assert order[0] == jobs[-1].slot
    assert order[1] == jobs[0].slot  # nor does the first starve


async def test_only_the_job_at_fault_fails_when_a_pass_does(lane: Lane) -> None:
    bad = Feeding(await take(lane), [Feed([1], 1), Feed([10_000], 1)])
    good = [Feeding(await take(lane), [Feed([1], 1)] * 5) for _ in range(3)]
    hold = threading.Event()
    lane.engine.post(hold.wait)
    for job in [bad, *good]:
        lane.submit(job)
    hold.set()
    for job in [bad, *good]:
        await job.finished()
    assert "10000" in str(bad.error)
    assert [job.error for job in good] == [None] * 3
    assert [len(job.logits) for job in good] == [5] * 3


async def test_closing_the_engine_fails_what_is_under_way_or_comes_later() -> None:
    engine = EngineThread()
    lane = tiny_lane(engine, tiny_decoder())
    running = Feeding(await take(lane), [Feed([1], 1)] * 100_000)
    lane.submit(running)
    hold = threading.Event()
    engine.post(hold.wait)
    waiting = asyncio.create_task(take(lane))
    await asyncio.sleep(0)
    closing = asyncio.create_task(asyncio.to_thread(engine.close))
    await asyncio.sleep(0.05)
    hold.set()
    await closing
    await running.finished()
    assert isinstance(running.error, TargetFailed)
    with pytest.raises(TargetFailed, match="shut down"):
        await waiting
    with pytest.raises(TargetFailed, match="shut down"):
        await take(lane)
    late = Feeding(running.slot, [Feed([1], 1)])
    lane.submit(late)
    assert isinstance(late.error, TargetFailed)


async def test_a_job_whose_event_loop_is_closed_does_no_harm(lane: Lane) -> None:
    slot = await take(lane)

    class Telling(Feeding):
        def take(self, logits: torch.Tensor, step: StepInfo) -> None:
            super().take(logits, step)
            self.tell(print, "nobody hears this")

    async def submit() -> Telling:
        job = Telling(slot, [Feed([1], 1)] * 3)
        hold = threading.Event()
        lane.engine.post(hold.wait)
        lane.submit(job)
        asyncio.get_running_loop().call_soon(hold.set)
        return job

    job = await asyncio.to_thread(lambda: asyncio.run(submit()))
    await lane.engine.call(lambda: None)
    await asyncio.sleep(0.05)
    assert job.error is None
    again = Feeding(slot, [Feed([1], 1)])
    lane.submit(again)
    await again.finished()
    assert again.error is None
