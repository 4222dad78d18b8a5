"""Where a run keeps what it needs to go on: whole checkpoints, under their own names or not at all.

    OUT/checkpoints/step-000200/   a draft's folder, with optimizer, scheduler, random state
    OUT/checkpoints/.unfinished/   being written; no use to anybody
    OUT/best                       leads to the best of them

A checkpoint is written under another name and then renamed, and older ones go only once it is
there: whatever breaks a run off, there is one that is whole.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError

from outrider.errors import CorruptData, TrainingError

__all__ = ["Best", "Checkpoint", "Checkpoints"]

_NAME: Final = re.compile(r"step-(\d{6,})")
_RECORD: Final = "run.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Best:
    """The step whose draft did best on held-out data."""

    step: int
    acceptance: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One of a run's checkpoints.

    Attributes:
        path: its folder.
        step: optimizer steps done.
        begun: what the run was begun with; see `settings.refuse_changes`.
        best: the best step so far, if held-out data was there.
    """

    path: Path
    step: int
    begun: Mapping[str, object]
    best: Best | None


class Checkpoints:
    """The checkpoints of one run. One process of a run writes them, all read them."""

    def __init__(self, out: Path, keep: int = 2) -> None:
        """Args:
        out: the run's folder.
        keep: how many of the latest stay; the best one always does.
        """
        self._out, self._keep = out, keep
        self._folder = out / "checkpoints"
        self.unfinished = self._folder / ".unfinished"

    def steps(self) -> dict[int, Path]:
        """All whole checkpoints by step, ascending."""
        found = {}
        for path in self._folder.glob("step-*"):
            if match := _NAME.fullmatch(path.name):
                found[int(match[1])] = path
        return dict(sorted(found.items()))

    def last(self) -> Checkpoint | None:
        """The latest one, or None.

        Raises:
            CorruptData: it cannot be read.
        """
        if not (found := self.steps()):
            return None
        path = list(found.values())[-1]
        try:
            record = json.loads((path / _RECORD).read_text(encoding="utf-8"))
            if record["version"] != _VERSION:
                raise ValueError(f"version {record['version']} is not {_VERSION}")
            best = record["best"]
            return Checkpoint(
                path, int(record["step"]), record["begun"], None if best is None else Best(**best)
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptData(
                f"{path} cannot be read ({error}); remove it to go on from the one before"
            ) from error

    @contextmanager
    def writing(self, *, first: bool = True) -> Iterator[Path]:
        """An empty folder to write the next checkpoint in; `finish` gives it its name.

        Args:
            first: whether this process is the one of the run that makes the folder.

        Raises:
            TrainingError: it cannot be written. All earlier checkpoints are as they were.
        """
        try:
            if first:
                shutil.rmtree(self.unfinished, ignore_errors=True)
                self.unfinished.mkdir(parents=True)
            yield self.unfinished
        except (OSError, SafetensorError, RuntimeError) as error:
            shutil.rmtree(self.unfinished, ignore_errors=True)
            words = " ".join(str(getattr(error, "strerror", None) or error).split())
            last = list(self.steps().values())[-1:]
            kept = f"the last one, {last[0].name}, is whole" if last else "there is none before it"
            raise TrainingError(
                f"cannot write a checkpoint in {self._folder}: {words}; {kept}: remedy that (is "
                "the disk full?), then start again with the same command"
            ) from error

    def finish(
        self, written: Path, step: int, begun: Mapping[str, object], best: Best | None
    ) -> None:
        """Complete the folder `written` inside of `unfinished`, and let older ones go."""
        record: dict[str, Any] = {
            "version": _VERSION,
            "step": step,
            "begun": dict(begun),
            "best": None if best is None else {"step": best.step, "acceptance": best.acceptance},
        }
        (written / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        place = self._folder / f"step-{step:06d}"
        if place.exists():  # the same step, written again by a run that went on from before it
            shutil.rmtree(place)
        written.rename(place)
        shutil.rmtree(self.unfinished, ignore_errors=True)
        self._prune(best)

    def _prune(self, best: Best | None) -> None:
        found = self.steps()
        kept = set(list(found)[-self._keep :])
        if best is not None:
            kept.add(best.step)
            link = self._out / "best"
            link.unlink(missing_ok=True)
            if best.step in found:
                link.symlink_to(found[best.step].relative_to(self._out))
        for step, path in found.items():
            if step not in kept:
                shutil.rmtree(path, ignore_errors=True)
