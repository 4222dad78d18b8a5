"""From prompts to shards: every prompt answered once at each temperature, many at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from outrider.engine import Lane
from outrider.errors import TrainingError
from outrider.train.answering import Answerer, Skipped
from outrider.train.prompts import Prompt, digest
from outrider.train.records import Example, Sampling, Source
from outrider.train.store import ShardWriter, read_examples, shards
from outrider.types import TargetInfo

__all__ = ["Tally", "make_data", "source_of"]

_SHARD_SIZE: Final = 32


@dataclass(slots=True)
class Tally:
    """How far a run is; changes while it runs, token by token.

    Attributes:
        total: answers wanted, of this run and of earlier ones.
        kept: those that earlier runs left in whole shards, skipped prompts counted.
        done: answers made by this run, skipped prompts counted.
        tokens: tokens made by this run.
        skipped: prompts that this run left out, and why.
        stored_tokens, stored_bytes: made by this run and in whole shards.
    """

    total: int
    kept: int = 0
    done: int = 0
    tokens: int = 0
    skipped: Counter[Skipped] = field(default_factory=Counter)
    stored_tokens: int = 0
    stored_bytes: int = 0

    def count_token(self) -> None:
        self.tokens += 1


def source_of(
    info: TargetInfo,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    k: int,
    temperatures: Sequence[float] = (),
    holdout: float,
) -> Source:
    """What the shards will say of themselves.

    Args:
        temperatures: at which normalisers are kept, beside 1 and those that are sampled at.
    """
    normalised = {1.0, *temperatures, *sampling.temperatures} - {0.0}
    return Source(
        model_id=info.model_id,
        model_hash=info.model_hash,
        vocab_fingerprint=info.vocab_fingerprint,
        vocab_size=info.vocab_size,
        eos_token_ids=tuple(sorted(info.eos_token_ids)),
        dtype=info.dtype,
        temperatures=tuple(sorted(normalised)),
        k=min(k, info.vocab_size),
        sampling=sampling,
        holdout=holdout,
        prompts=digest(prompts),
        shard_size=_SHARD_SIZE,
    )


async def make_data(
    folder: Path,
    lane: Lane,
    info: TargetInfo,
    source: Source,
    prompts: Sequence[Prompt],
    *,
    streams: int,
    on_shard: Callable[[Tally], None] = lambda _: None,
    on_answer: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Answer what `folder` has no answers to yet. What whole shards hold stays as it is.

    A target that gives the same bits in any company (`Capabilities.batch_invariant`) makes the same
    shards, however often the run is broken off.

    Args:
        folder: gets the shards.
        lane, info: the target.
        source: of `source_of`, for these prompts.
        streams: conversations at a time.
        on_answer, on_shard: told of progress.

    Raises:
        TrainingError: the folder holds answers of another target or with other settings, cannot be
            written, or no prompt could be answered.
        CorruptData: a shard in the folder cannot be read.
        TargetFailed: the engine failed.
    """
    asked = [(prompt, t) for prompt in prompts for t in source.sampling.temperatures]
    run = _Run(ShardWriter(folder, source), asked, source.shard_size, on_shard, on_answer)
    run.leave_out(_whole_shards(folder, source))
    answerer = Answerer(lane, info, source, run.tally.count_token)
    answerer.check(prompts)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(streams):
                group.create_task(run.work(answerer))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    if not len(read_examples(folder)):
        reasons = ", ".join(run.tally.skipped) or "they were all skipped before"
        raise TrainingError(f"no prompt could be answered: {reasons}; use other prompts")
    return run.tally


def _whole_shards(folder: Path, source: Source) -> frozenset[int]:
    """The shards that are there already. Raises as `make_data` does."""
    if not (found := shards(folder)):
        return frozenset()
    present = read_examples(folder).source
    for each in fields(Source):
        there, wanted = getattr(present, each.name), getattr(source, each.name)
        if there != wanted:
            raise TrainingError(
                f"{folder} holds answers with {each.name} {_short(there)}, and this run would have "
                f"{_short(wanted)}; give the same target, prompts and settings to go on there, or "
                "another --out"
            )
    return frozenset(found)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Run:
    """What the streams of one run share. All methods are called on the event loop."""

    def __init__(
        self,
        writer: ShardWriter,
        asked: Sequence[tuple[Prompt, float]],
        shard_size: int,
        on_shard: Callable[[Tally], None],
        on_answer: Callable[[Tally], None],
    ) -> None:
        self.tally = Tally(len(asked))
        self._writer = writer
        self._on_shard, self._on_answer = on_shard, on_answer
        starts = range(0, len(asked), shard_size)
        self._asked = {n: asked[at : at + shard_size] for n, at in enumerate(starts)}
        self._answers: dict[int, dict[int, Example | Skipped]] = {}
        self._next: Iterator[tuple[int, int]] = iter(())
        self.leave_out(frozenset())

    def leave_out(self, shards: frozenset[int]) -> None:
        """Ask nothing that these shards answer."""
        self.tally.kept = sum(len(asked) for n, asked in self._asked.items() if n in shards)
        left = [n for n in self._asked if n not in shards]
        self._next = iter([(n, place) for n in left for place in range(len(self._asked[n]))])

    async def work(self, answerer: Answerer) -> None:
        """Answer, one after the other, whatever is next, until there is nothing left."""
        for shard, place in self._next:
            prompt, temperature = self._asked[shard][place]
            answer = await answerer.answer(prompt, temperature)
            self.tally.done += 1
            if isinstance(answer, Skipped):
                self.tally.skipped[answer] += 1
            answers = self._answers.setdefault(shard, {})
            answers[place] = answer
            if len(answers) == len(self._asked[shard]):
                await self._write(shard)
            self._on_answer(self.tally)

    async def _write(self, shard: int) -> None:
        answers = self._answers.pop(shard)
        found = [answers[place] for place in sorted(answers)]
        examples = [each for each in found if isinstance(each, Example)]
        path = await asyncio.to_thread(self._writer.write, shard, examples)
        self.tally.stored_tokens += sum(len(each.support_ids) for each in examples)
        self.tally.stored_bytes += path.stat().st_size
        self._on_shard(self.tally)
