"""The run: warm up, then keep so many conversations going, configurations in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import cycle, islice
from typing import Any, Final

from outrider.bench.recording import Block, Clock, Record, Recording, Subject
from outrider.bench.workload import Prompt
from outrider.errors import OutriderError

__all__ = ["Progress", "measure", "warm_up"]

_WAVES: Final = 4
"""A block of several streams is so many times as long as wide: full for most of its time, and yet
short beside whatever else the machine does."""

Progress = Callable[[str, int, int], None]
"""Told, now and then: which part, how much of it is done, out of how much."""


async def warm_up(
    subjects: Sequence[Subject],
    prompts: Sequence[Prompt],
    requests: int,
    concurrency: int,
    progress: Progress,
) -> None:
    """Ask each configuration so many things whose times do not count.

    The first answers in a process, and on a connection, pay for what later ones find in place.

    Raises:
        OutriderError: a request failed.
    """
    done = 0
    for subject in subjects:
        waiting = islice(cycle(prompts), requests)

        async def work(subject: Subject = subject, waiting: Iterator[Prompt] = waiting) -> None:
            nonlocal done
            for prompt in waiting:
                await subject.ask(prompt.warm_up())
                done += 1
                progress("warming up", done, requests * len(subjects))

        await _together([work] * min(concurrency, requests))


async def measure(
    recording: Recording,
    subjects: Sequence[Subject],
    prompts: Sequence[Prompt],
    concurrency: int,
    clock: Clock,
    progress: Progress,
) -> None:
    """Put every prompt to every configuration, each of its turns behind the answers before.

    Closed loop: as soon as a conversation ends, the next one begins. Configurations take turns,
    block by block, and the one that goes first changes, so that whatever else the machine does hits
    all alike; a block is one prompt, or a few waves of several streams, and it ends before the next
    begins. A failed request ends its conversation and is recorded.

    Args:
        recording: where everything goes as it comes; it stays good if this is cancelled.
        subjects: at least one.
        prompts: what is asked.
        concurrency: conversations at a time.
        clock: the one that the subjects use.
        progress: told in conversations.
    """
    if len(subjects) == 1:
        length = max(1, len(prompts))
    else:
        length = 1 if concurrency == 1 else _WAVES * concurrency
    total, done = len(prompts) * len(subjects), 0
    for number, start in enumerate(range(0, len(prompts), length)):
        first = number % len(subjects)
        for index in [*range(first, len(subjects)), *range(first)]:
            block = Block(index, clock())
            recording.blocks.append(block)
            waiting = iter(prompts[start : start + length])

            async def work(
                subject: Subject = subjects[index],
                block: Block = block,
                waiting: Iterator[Prompt] = waiting,
            ) -> None:
                nonlocal done
                for prompt in waiting:
                    await _converse(subject, prompt, block, clock)
                    done += 1
                    progress("measuring", done, total)

            await _together([work] * min(concurrency, length))


async def _converse(subject: Subject, prompt: Prompt, block: Block, clock: Clock) -> None:
    answers: list[str] = []
    for turn in range(len(prompt.turns)):
        try:
            answer = await subject.ask(prompt.question(answers))
        except OutriderError as error:
            failure = f"{type(error).__name__}: {error}"
            block.records.append(Record(prompt, turn, clock(), error=failure))
            return
        # Not the clock's time: what was done with the answer since is not the server's.
        block.records.append(Record(prompt, turn, answer.chunks[-1].at, answer))
        answers.append(answer.text)


async def _together(jobs: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run all; the first failure ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
