"""What is written down of a run while it goes on, and what a person sees of it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from outrider.errors import TrainingError

__all__ = ["Journal", "Watch"]

_HELD_OUT: Final = "held_out"


class Journal:
    """`metrics.jsonl` of a run: a line per so many steps, and one per look at held-out data."""

    def __init__(self, out: Path) -> None:
        self.path = out / "metrics.jsonl"

    def begin(self, step: int) -> None:
        """Drop lines behind `step`: a run that goes on from there writes them again.

        Raises:
            TrainingError: the file cannot be written.
        """
        kept = [json.dumps(each) + "\n" for each in self.entries() if each["step"] <= step]
        with self._written():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path.with_suffix(".unfinished")
            fresh.write_text("".join(kept), encoding="utf-8")
            fresh.replace(self.path)

    def add(self, entry: dict[str, Any]) -> None:
        """Append a line. Raises as `begin` does."""
        with self._written(), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def entries(self) -> list[dict[str, Any]]:
        """All whole lines."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # the line that a run was broken off in
        return found

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingError(
                f"cannot write {self.path}: {error.strerror or error}; remedy that, then start "
                "again with the same command"
            ) from error


class Watch:
    """Shows how a run goes: a bar on a terminal, lines elsewhere."""

    def __init__(self, steps: int, begun_at: int = 0, *, quiet: bool = False) -> None:
        """Args:
        steps: of the whole run.
        begun_at: steps that were done before.
        quiet: for processes other than the first.
        """
        self._steps, self._begun_at = steps, begun_at
        self._started = time.perf_counter()
        self._console = Console(stderr=True, highlight=False, quiet=quiet)
        self._bar: Progress | None = None
        self._words = ""
        if sys.stderr.isatty() and not quiet:
            columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn())
            last = TextColumn("{task.fields[words]}")
            self._bar = Progress(*columns, last, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=steps, completed=begun_at, words="")

    @contextmanager
    def showing(self) -> Iterator[None]:
        """While this is entered, the bar is on the screen."""
        if self._bar is None:
            yield
            return
        with self._bar:
            yield

    def step(self, step: int) -> None:
        """One more optimizer step is done."""
        if self._bar is not None:
            words = f"{self._words}, {self._left(step)} left"
            self._bar.update(self._task, completed=step, words=words)

    def trained(self, entry: dict[str, Any]) -> None:
        """Show a line of the journal."""
        self._words = (
            f"loss {entry['loss']:.3f}, acceptance {entry['acceptance']:.3f}, agreement "
            f"{entry['agreement']:.3f}, {entry['tokens_per_s']:.0f} tokens/s"
        )
        if self._bar is None:
            step = entry["step"]
            self.say(f"step {step} of {self._steps}: {self._words}, {self._left(step)} left")

    def held_out(self, entry: dict[str, Any], *, best: bool) -> None:
        """Show a look at held-out data."""
        values = entry[_HELD_OUT]
        self.say(
            f"step {entry['step']}: held out: acceptance {values['acceptance']:.3f}, agreement "
            f"{values['agreement']:.3f}, {values['tokens_per_round']:.2f} tokens per round of "
            f"{values['lookahead']} drafted{' (best so far)' if best else ''}"
        )

    def say(self, words: str) -> None:
        """Print a line, above the bar if there is one."""
        self._console.print(words, markup=False, soft_wrap=True)

    def _left(self, step: int) -> str:
        done = step - self._begun_at
        seconds = (time.perf_counter() - self._started) * (self._steps - step) / max(done, 1)
        minutes = round(seconds) // 60
        return f"{minutes // 60}:{minutes % 60:02d}:{round(seconds) % 60:02d}"
