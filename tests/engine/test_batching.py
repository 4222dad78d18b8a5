"""What goes into each pass, over a decoder that computes nothing and counts everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
import torch

from outrider.engine import Chunk, Feed, Job, KVCache, Lane, StepInfo
from outrider.errors import ContextLengthExceeded, Overloaded, RequestError
from tests.tiny import tiny_decoder

pytestmark = pytest.mark.anyio

T = TypeVar("T")
LENGTH = 256


class SteppedEngine:
    """Runs commands at once, and steps never: the test does."""

    def add(self, stepper: object) -> None:
        """Nothing drives it."""

    def gather(self, wanted: Callable[[], bool], seconds: float) -> None:
        """Nobody comes back."""

    def post(self, run: Callable[[], None], refuse: object = None) -> None:
        run()

    async def call(self, function: Callable[[], T], *, abandoned: object = None) -> T:
        return function()


class CountingDecoder:
    """Notes who computes how many tokens in each pass."""

    def __init__(self) -> None:
        self._config = tiny_decoder().config
        self.passes: list[dict[int, int]] = []
        self.failing = False

    def new_cache(self, *, num_slots: int, max_length: int) -> KVCache:
        return KVCache(
            self._config,
            num_slots=num_slots,
            max_length=max_length,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )

    def forward(self, chunks: Sequence[Chunk], cache: KVCache) -> list[torch.Tensor]:
        if self.failing:
            raise RuntimeError("out of memory")
        self.passes.append({chunk.slot: len(chunk.token_ids) for chunk in chunks})
        for chunk in chunks:
            end = cache.length(chunk.slot) + len(chunk.token_ids)
            cache.reserve(chunk.slot, end)
            cache.commit(chunk.slot, end)
        return [torch.zeros(chunk.num_logits, 4) for chunk in chunks]


class Counting(Job):
    """Feeds so many tokens at a time, so many times."""

    def __init__(self, slot: int, *sizes: int, rows: int = 1) -> None:
        super().__init__(slot)
        self._sizes = list(sizes)
        self._rows = rows
        self.taken = 0
        self.error: Exception | None = None

    def feed(self) -> Feed | None:
        if not self._sizes:
            return None
        size = self._sizes.pop(0)
        return Feed([1] * size, min(self._rows, size))

    def take(self, logits: torch.Tensor, step: StepInfo) -> None:
        self.taken += 1

    def fail(self, error: Exception) -> None:
        self.error = error


@pytest.fixture
def decoder() -> CountingDecoder:
    return CountingDecoder()


def lane_over(decoder: CountingDecoder, **changes: Any) -> Lane:
    options = {"num_slots": 16, "max_length": LENGTH, "step_tokens": 64} | changes
    return Lane(SteppedEngine(), decoder, **options)  # type: ignore[arg-type]


async def submit(lane: Lane, *sizes: int, rows: int = 1) -> Counting:
    opening = await lane.open((), LENGTH, "")
    job = Counting(opening.slot, *sizes, rows=rows)
    lane.submit(job)
    return job


def drain(lane: Lane) -> None:
    while lane.busy:
        lane.step()


async def test_sequences_join_the_next_pass_and_leave_with_their_last(decoder) -> None:
    lane = lane_over(decoder)
    one = await submit(lane, *[1] * 5)
    lane.step()
    two = await submit(lane, *[1] * 2)
    drain(lane)
    both = {one.slot, two.slot}
    assert [set(each) for each in decoder.passes] == [
        {one.slot},
        both,
        both,
        {one.slot},
        {one.slot},
    ]


async def test_a_prompt_alone_gets_whole_steps(decoder) -> None:
    lane = lane_over(decoder)
    job = await submit(lane, 200)
    drain(lane)
    assert [each[job.slot] for each in decoder.passes] == [64, 64, 64, 8]


async def test_beside_a_running_sequence_prompts_share_a_quarter_of_a_step(decoder) -> None:
    lane = lane_over(decoder)
    stream = await submit(lane, *[1] * 100)
    prompts = [await submit(lane, 200) for _ in range(3)]
    lane.step()
    (each,) = decoder.passes
    assert each[stream.slot] == 1
    assert sum(each.get(prompt.slot, 0) for prompt in prompts) == 16


async def test_a_running_sequence_takes_part_in_every_pass_while_prompts_are_read(decoder) -> None:
    lane = lane_over(decoder)
    stream = await submit(lane, *[1] * 100)
    prompts = [await submit(lane, 200) for _ in range(5)]
    drain(lane)
    assert all(stream.slot in each for each in decoder.passes[:100])
    assert max(sum(each.values()) for each in decoder.passes[:60]) == 1 + 16
    assert all(prompt.taken == 1 for prompt in prompts)


async def test_the_first_prompt_goes_on_however_many_shorter_ones_come(decoder) -> None:
    lane = lane_over(decoder)
    first = await submit(lane, 200)
    lane.step()
    steps = 0
    while not first.taken:
        job = await submit(lane, 40)
        lane.step()
        await lane.close(job.slot)
        steps += 1
    assert steps <= 6  # (200 - 64) tokens, at least half of every step


async def test_every_prompt_of_many_is_read(decoder) -> None:
    lane = lane_over(decoder)
    stream = await submit(lane, *[1] * 240)
    prompts = [await submit(lane, 100 + 10 * index) for index in range(10)]
    steps = 0
    while not all(prompt.taken for prompt in prompts):
        lane.step()
        steps += 1
    assert steps <= 1450 // 16 + 10
    assert stream.taken == steps


async def test_short_feeds_that_exceed_a_step_take_turns(decoder) -> None:
    """Ten drafts of 16 do not fit 64 tokens; nobody falls behind."""
    lane = lane_over(decoder)
    jobs = [await submit(lane, *[17] * 12, rows=17) for _ in range(10)]
    for _ in range(20):
        lane.step()
    assert max(sum(each.values()) for each in decoder.passes) <= 64
    counts = Counter(slot for each in decoder.passes for slot in each)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len(counts) == len(jobs)


async def test_a_large_feed_is_not_passed_over_for_ever_by_small_ones(decoder) -> None:
    lane = lane_over(decoder)
    small = [await submit(lane, *[9] * 20, rows=9) for _ in range(9)]
    large = await submit(lane, 32, rows=32)
    for _ in range(3):
        lane.step()
    assert large.taken == 1
    assert all(job.taken >= 1 for job in small)


async def test_a_feed_larger_than_a_step_gets_a_pass_all_the_same(decoder) -> None:
    lane = lane_over(decoder, step_tokens=16)
    job = await submit(lane, 40, rows=40)
    other = await submit(lane, 1)
    drain(lane)
    assert decoder.passes == [{job.slot: 40}, {other.slot: 1}]


async def test_rows_with_logits_come_from_one_pass_whatever_is_left_for_them(decoder) -> None:
    lane = lane_over(decoder)
    stream = await submit(lane, *[1] * 100)
    job = await submit(lane, 50, rows=30)
    drain(lane)
    assert [each[job.slot] for each in decoder.passes if job.slot in each] == [16, 4, 30]
    assert (job.taken, stream.taken) == (1, 100)


async def test_a_cancelled_prompt_leaves_before_the_next_pass(decoder) -> None:
    lane = lane_over(decoder)
    job = await submit(lane, 200)
    other = await submit(lane, 200)
    lane.step()
    job.cancel()
    drain(lane)
    assert job.slot in decoder.passes[0]
    assert all(job.slot not in each for each in decoder.passes[1:])
    assert (job.taken, other.taken) == (0, 1)


async def follow(lane: Lane, prompt: Sequence[int]) -> tuple[Counting, int]:
    opening = await lane.open(prompt, len(prompt) + 50, "a")
    job = Counting(opening.slot, len(prompt) - opening.reused)
    lane.submit(job)
    return job, opening.reused


PROMPT = list(range(40))


async def test_what_ended_well_is_reused_and_computed_no_more(decoder) -> None:
    lane = lane_over(decoder)
    first, _ = await follow(lane, PROMPT)
    drain(lane)
    await lane.close(first.slot, PROMPT)
    second, reused = await follow(lane, [*PROMPT, 1, 2])
    drain(lane)
    assert reused == 40
    assert decoder.passes == [{first.slot: 40}, {second.slot: 2}]


async def test_what_was_called_off_is_reused_as_far_as_it_got(decoder) -> None:
    lane = lane_over(decoder, step_tokens=16)
    job, _ = await follow(lane, PROMPT)
    lane.step()
    await lane.close(job.slot, PROMPT)
    assert (await follow(lane, PROMPT))[1] == 16


async def test_what_failed_is_not_reused(decoder) -> None:
    lane = lane_over(decoder)
    job, _ = await follow(lane, PROMPT)
    lane.step()
    decoder.failing = True
    again = Counting(job.slot, 1)
    lane.submit(again)
    lane.step()
    decoder.failing = False
    assert str(again.error) == "out of memory"
    assert (await follow(lane, PROMPT))[1] == 0
    await lane.close(job.slot, PROMPT)
    assert lane.cache.num_retained == 0


async def test_reuse_can_be_turned_off(decoder) -> None:
    lane = lane_over(decoder, reuse=False)
    for _ in range(2):
        job, reused = await follow(lane, PROMPT)
        drain(lane)
        await lane.close(job.slot, PROMPT)
        assert reused == 0
    assert lane.cache.bytes_retained == 0


async def test_admission_goes_by_the_tokens_that_may_come(decoder) -> None:
    lane = lane_over(decoder, kv_tokens=150)
    one = await lane.open(PROMPT, 100, "a")
    with pytest.raises(Overloaded, match="51 tokens do not fit now: 100 of the 150"):
        await lane.open(PROMPT, 51, "a")
    with pytest.raises(ContextLengthExceeded, match="holds 150 tokens"):
        await lane.open(PROMPT, 151, "a")
    with pytest.raises(RequestError, match="-1"):
        await lane.open([-1], 50, "a")
    await lane.open(PROMPT, 50, "a")
    await lane.close(one.slot)
    assert (await lane.open(PROMPT, 100, "a")).reused == 0


async def test_what_is_kept_can_be_forgotten(decoder) -> None:
    lane = lane_over(decoder)
    job, _ = await follow(lane, PROMPT)
    drain(lane)
    await lane.close(job.slot, PROMPT)
    assert lane.cache.num_retained == 1
    await lane.forget()
    assert (lane.cache.num_retained, lane.cache.bytes_retained) == (0, 0)


async def test_copies_of_a_prompt_read_it_once(decoder) -> None:
    lane = lane_over(decoder)
    prompt = list(range(200))
    jobs = [(await follow(lane, prompt))[0] for _ in range(4)]
    drain(lane)
    assert [job.taken for job in jobs] == [1] * 4
    sizes = Counter[int]()
    for each in decoder.passes:
        sizes.update(each)
    assert sorted(sizes.values()) == [1, 1, 1, 200]
    assert len(decoder.passes) <= 5


async def test_prompts_that_begin_alike_part_where_they_differ(decoder) -> None:
    lane = lane_over(decoder)
    system = list(range(120))
    jobs = [(await follow(lane, [*system, *[index] * 40]))[0] for index in range(1, 4)]
    drain(lane)
    assert [job.taken for job in jobs] == [1] * 3
    assert sum(sum(each.values()) for each in decoder.passes) == 120 + 3 * 40


@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_who_waits_for_another_goes_on_when_that_one_leaves(decoder, end) -> None:
    lane = lane_over(decoder)
    prompt = list(range(200))
    first, second = [(await follow(lane, prompt))[0] for _ in range(2)]
    lane.step()
    lane.step()
    assert all(second.slot not in each for each in decoder.passes)
    if end == "cancel":
        first.cancel()
    else:
        await lane.close(first.slot, prompt)
    drain(lane)
    assert (first.taken, second.taken) == (0, 1)
    assert sum(each.get(second.slot, 0) for each in decoder.passes) == 200 - 128


async def test_nobody_waits_for_another_tenant_or_for_one_that_does_not_read(decoder) -> None:
    lane = lane_over(decoder)
    prompt = list(range(200))
    await lane.open(prompt, LENGTH, "a")  # open, but nothing was asked of it
    mine, _ = await follow(lane, prompt)
    opening = await lane.open(prompt, LENGTH, "b")
    other = Counting(opening.slot, 200)
    lane.submit(other)
    drain(lane)
    assert (mine.taken, other.taken) == (1, 1)
    assert sum(sum(each.values()) for each in decoder.passes) == 400


async def test_reading_without_wanting_logits_still_ends_with_a_pass(decoder) -> None:
    lane = lane_over(decoder)
    prompt = list(range(200))
    jobs = []
    for _ in range(2):
        opening = await lane.open(prompt, LENGTH, "a")
        jobs.append(Counting(opening.slot, 199, rows=0))
        lane.submit(jobs[-1])
    drain(lane)
    assert [job.taken for job in jobs] == [1, 1]
    assert [lane.cache.length(job.slot) for job in jobs] == [199, 199]
    assert sum(sum(each.values()) for each in decoder.passes) == 200


async def test_who_finds_no_memory_to_catch_up_fails_alone(decoder, monkeypatch) -> None:
    lane = lane_over(decoder)
    prompt = list(range(200))
    first, second = [(await follow(lane, prompt))[0] for _ in range(2)]
    other = await submit(lane, 1, 1)
    catch_up = lane.cache.catch_up

    def failing(slot: int, most: int, reading: Any) -> bool:
        if slot == second.slot:
            raise RuntimeError("out of memory")
        return catch_up(slot, most, reading)

    monkeypatch.setattr(lane.cache, "catch_up", failing)
    drain(lane)
    assert str(second.error) == "out of memory"
    assert (first.error, first.taken, other.taken) == (None, 1, 2)
