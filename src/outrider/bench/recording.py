"""What a run has measured so far: good at any moment, so that an interrupted run has it too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from outrider.bench.answer import Answer
from outrider.bench.workload import Prompt, Question

__all__ = ["Block", "Clock", "Record", "Recording", "Subject"]

Clock = Callable[[], float]
"""Seconds from some moment on, never going back."""


class Subject(Protocol):
    """A configuration that is measured: who answers, and with which settings."""

    @property
    def label(self) -> str:
        """What it is, on one line."""
        ...

    async def ask(self, question: Question) -> Answer:
        """The answer to `question`; raises an `OutriderError` if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Record:
    """One request.

    Attributes:
        prompt: whose.
        turn: which of its turns, from 0.
        ended_at: in s, by the clock of the run.
        answer: None if it failed.
        error: why; empty if it did not.
    """

    prompt: Prompt
    turn: int
    ended_at: float
    answer: Answer | None = None
    error: str = ""


@dataclass(slots=True)
class Block:
    """Requests of one configuration, from a still machine to a still machine."""

    subject: int
    started_at: float
    records: list[Record] = field(default_factory=list)

    @property
    def duration_s(self) -> float:
        """To the end of the last request that ended."""
        return max((r.ended_at for r in self.records), default=self.started_at) - self.started_at


@dataclass(slots=True)
class Recording:
    """All blocks, in order.

    Attributes:
        labels: what each configuration is.
        interrupted: it was to be longer.
    """

    labels: Sequence[str]
    blocks: list[Block] = field(default_factory=list)
    interrupted: bool = False

    def blocks_of(self, subject: int) -> list[Block]:
        """The blocks of one configuration."""
        return [block for block in self.blocks if block.subject == subject]

    def records_of(self, subject: int) -> list[Record]:
        """The requests of one configuration, as they ended."""
        return [record for block in self.blocks_of(subject) for record in block.records]
