"""What a person sees of a run that makes training data: how far it is, and what it made."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from outrider.train.data import Tally
from outrider.train.store import Entry, read_examples

__all__ = ["Watch", "report"]


class _Speed(ProgressColumn):
    """Tokens made, and how fast; drawn anew while one answer is still being made."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def render(self, task: Task) -> Text:
        return Text(self._watch.line())


class Watch:
    """What is shown while answers are made: a bar on a terminal, a line per shard elsewhere."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._tally: Tally | None = None
        self._console = Console(stderr=True, highlight=False)
        columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn())
        self._bars: Progress | None = None
        if sys.stderr.isatty():
            self._bars = Progress(
                *columns, _Speed(self), TimeElapsedColumn(), console=self._console, transient=True
            )
            self._task = self._bars.add_task("", total=None)

    @property
    def bars(self) -> Progress | nullcontext[None]:
        return self._bars or nullcontext()

    def answered(self, tally: Tally) -> None:
        self._tally = tally
        if self._bars is not None:
            done = tally.kept + tally.done
            self._bars.update(self._task, completed=done, total=tally.total)

    def written(self, tally: Tally) -> None:
        self._tally = tally
        if self._bars is None:
            done = tally.kept + tally.done
            self._console.print(f"{done} of {tally.total} answers, {self.line()}")

    def line(self) -> str:
        """Tokens, tokens per second, bytes per token, and the time that is left."""
        if (tally := self._tally) is None:
            return ""
        seconds = time.perf_counter() - self._started
        left = (tally.total - tally.kept - tally.done) * seconds / max(tally.done, 1)
        parts = [f"{tally.tokens} tokens", f"{tally.tokens / seconds:.1f} tokens/s"]
        if tally.stored_tokens:
            parts.append(f"{tally.stored_bytes / tally.stored_tokens:.0f} bytes/token")
        return ", ".join([*parts, f"{_time(left)} left"])


def _time(seconds: float) -> str:
    minutes = round(seconds) // 60
    return f"{minutes // 60}:{minutes % 60:02d}:{round(seconds) % 60:02d}"


def report(folder: Path, tally: Tally, console: Console) -> None:
    """Print what the folder holds, of all runs."""
    examples = read_examples(folder)
    table = Table("category", "answers", "held out", "tokens", "ended", "cut off", box=None)
    groups: dict[str, list[Entry]] = {}
    for entry in examples.entries:
        groups.setdefault(entry.category, []).append(entry)
    groups = dict(sorted(groups.items()))
    if len(groups) > 1:
        groups["all"] = examples.entries
    for name, entries in groups.items():
        ends = Counter(reason for entry in entries for reason in entry.finish_reasons)
        table.add_row(
            Text(name),
            str(len(entries)),
            str(sum(entry.held_out for entry in entries)),
            str(sum(entry.num_generated for entry in entries)),
            str(ends["stop"]),
            str(ends["length"]),
        )
    console.print(table)
    tokens = max(int(examples.num_generated.sum()), 1)
    source = examples.source
    console.print(
        f"{source.model_id} ({source.dtype}), {examples.nbytes / 1e6:.1f} MB, "
        f"{examples.nbytes / tokens:.0f} bytes per token, in {folder}",
        markup=False,
        soft_wrap=True,
    )
    if skipped := tally.total - len(examples):
        reasons = ", ".join(f"{count} {reason}" for reason, count in tally.skipped.items())
        console.print(f"{skipped} prompts have no answer{f': {reasons}' if reasons else ''}")
