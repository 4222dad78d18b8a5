"""The nouns of a training run: for which target, from what, where to, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from outrider.text import HFTokenizer
from outrider.train.checkpoint import Best

__all__ = ["DraftModel", "Outcome", "Plan", "Rhythm", "Target"]

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DraftModel:
    """A draft that may be trained.

    Attributes:
        model: a causal language model of transformers.
        target_ids: int64 [V_draft], ascending, the target's id of each draft id; None if the draft
            has the target's ids.
        note: a line for whoever watches.
    """

    model: Any
    target_ids: I64 | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """The model that drafts are wanted for.

    Attributes:
        model_id, model_hash, dtype: as in `types.TargetInfo`.
        vocab_fingerprint: likewise.
        tokenizer: its own.
        folder: its files, as they are served.
        live_folder: holds it in floating point, for a live teacher.
    """

    model_id: str
    model_hash: str
    vocab_fingerprint: str
    tokenizer: HFTokenizer
    folder: Path
    dtype: str | None = None
    live_folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is trained on, and where it goes.

    Attributes:
        out: the run's folder.
        data: folders of `outrider train data`, all of one target.
        held_out: folders to judge by; if there are none, what `data` holds out.
        origin: what the first draft is made from, to be compared when a run goes on.
        keep: how many of the latest checkpoints stay.
        device: a torch device.
    """

    out: Path
    data: tuple[Path, ...]
    held_out: tuple[Path, ...] = ()
    origin: str = ""
    keep: int = 2
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Rhythm:
    """After how many steps something is done.

    Attributes:
        report: a line in the journal.
        evaluate: a look at held-out data.
        save: a checkpoint.
    """

    report: int = 10
    evaluate: int = 100
    save: int = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        step, steps: done, and of the whole run.
        best: the best step by held-out data; None if there is none.
        checkpoint: the folder of the draft to take: the best one, or the last.
        interrupted: whether it was asked to end before it was done.
        first: whether this is the process of the run that writes.
    """

    step: int
    steps: int
    best: Best | None
    checkpoint: Path
    interrupted: bool
    first: bool
