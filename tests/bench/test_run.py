"""Who is asked what, when: closed loops, turns, blocks in turn, failures, an end before time."""

from __future__ import annotations

import asyncio

import pytest

from outrider.bench import Answer, Question, Recording, measure, warm_up
from outrider.errors import TargetFailed

from .scripted import ScriptedClock, answer_at, prompt

pytestmark = pytest.mark.anyio


class Subject:
    """Answers after a moment, and notes who was asked what."""

    def __init__(self, label: str, clock: ScriptedClock, log: list[tuple[str, str]]) -> None:
        self.label = label
        self.fails_on: str | None = None
        self.under_way = 0
        self.most = 0
        self._clock = clock
        self._log = log

    async def ask(self, question: Question) -> Answer:
        text = question.messages[-1]["content"]
        self._log.append((self.label, text))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        self.under_way -= 1
        if text == self.fails_on:
            raise TargetFailed("no more")
        start = self._clock.now
        self._clock.now += 2.0
        return answer_at(start, (start + 1, 1), (start + 2, 1), text=f"answer to {text}")


async def run(subjects, prompts, clock, concurrency=1) -> Recording:
    recording = Recording([subject.label for subject in subjects])
    await measure(recording, subjects, prompts, concurrency, clock, lambda *_: None)
    return recording


async def test_two_configurations_take_turns_and_change_who_goes_first(clock) -> None:
    log = []
    await run(
        [Subject("A", clock, log), Subject("B", clock, log)], [prompt(n) for n in range(3)], clock
    )
    assert [label for label, _ in log] == ["A", "B", "B", "A", "A", "B"]
    assert [text for _, text in log[::2]] == [f"question {n}" for n in range(3)]


async def test_several_streams_run_in_blocks_that_do_not_overlap(clock) -> None:
    log = []
    subjects = [Subject("A", clock, log), Subject("B", clock, log)]
    await run(subjects, [prompt(n) for n in range(10)], clock, concurrency=2)
    labels = "".join(label for label, _ in log)
    assert labels == "A" * 8 + "B" * 8 + "B" * 2 + "A" * 2
    assert [subject.most for subject in subjects] == [2, 2]


async def test_one_configuration_keeps_all_streams_busy_to_the_end(clock) -> None:
    subject = Subject("A", clock, [])
    recording = await run([subject], [prompt(n) for n in range(10)], clock, concurrency=3)
    assert len(recording.blocks) == 1
    assert (subject.most, len(recording.records_of(0))) == (3, 10)


async def test_a_turn_is_asked_behind_the_answers_before_it(clock) -> None:
    asked = []

    class Listening(Subject):
        async def ask(self, question: Question) -> Answer:
            asked.append([message["content"] for message in question.messages])
            return await super().ask(question)

    recording = await run([Listening("A", clock, [])], [prompt(0, "a", "b")], clock)
    assert asked == [["a"], ["a", "answer to a", "b"]]
    assert [record.turn for record in recording.records_of(0)] == [0, 1]


async def test_a_failure_is_named_and_ends_its_conversation_only(clock) -> None:
    subject = Subject("A", clock, [])
    subject.fails_on = "a"
    recording = await run([subject], [prompt(0, "a", "b"), prompt(1, "c")], clock)
    failed, answered = recording.records_of(0)
    assert (failed.error, failed.answer) == ("TargetFailed: no more", None)
    assert (answered.prompt.index, answered.error) == (1, "")


async def test_a_block_lasts_from_its_beginning_to_its_last_token(clock) -> None:
    recording = await run([Subject("A", clock, [])], [prompt(0), prompt(1)], clock)
    assert [block.duration_s for block in recording.blocks] == [4.0]


async def test_a_run_that_is_cancelled_leaves_what_was_measured(clock) -> None:
    class Hanging(Subject):
        async def ask(self, question: Question) -> Answer:
            if question.messages[-1]["content"] == "question 2":
                await asyncio.Event().wait()
            return await super().ask(question)

    recording = Recording(["A"])
    subject = Hanging("A", clock, [])
    prompts = [prompt(n) for n in range(4)]
    task = asyncio.create_task(measure(recording, [subject], prompts, 1, clock, lambda *_: None))
    while len(recording.records_of(0)) < 2:  # noqa: ASYNC110 # no event tells of a record
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(recording.records_of(0)) == 2
    assert recording.blocks[0].duration_s == 4.0


async def test_warming_up_asks_each_configuration_so_often_and_tells_how_far_it_is(clock) -> None:
    log, told = [], []
    subjects = [Subject("A", clock, log), Subject("B", clock, log)]
    await warm_up(subjects, [prompt(0), prompt(1)], 3, 2, lambda *said: told.append(said))
    assert [label for label, _ in log] == ["A"] * 3 + ["B"] * 3
    assert told[-1] == ("warming up", 6, 6)


async def test_a_failure_while_warming_up_ends_the_run(clock) -> None:
    subject = Subject("A", clock, [])
    subject.fails_on = "(Warm-up.) question 0"
    with pytest.raises(TargetFailed, match="no more"):
        await warm_up([subject], [prompt(0)], 1, 1, lambda *_: None)
