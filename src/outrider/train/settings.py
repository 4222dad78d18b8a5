"""How a draft is distilled, and what must not change between the parts of one run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from outrider.errors import ConfigError, TrainingError
from outrider.train.objective import LossSettings

__all__ = ["DistilSettings", "Precision", "Teacher", "refuse_changes"]

Teacher = Literal["stored", "live"]
Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class DistilSettings:
    """All that makes two runs over the same data and the same first draft come out the same.

    Attributes:
        loss: which loss, at which temperature.
        epochs: times that the data is gone through; may be a fraction.
        learning_rate: of AdamW at its height, after the warmup; it falls to 0 as a cosine does.
        warmup: share of all steps over which it rises.
        weight_decay: of matrices.
        max_grad_norm: gradients are clipped to this norm.
        batch_tokens: positions per optimizer step, over all processes, padding counted.
        part_tokens: positions per forward pass: memory grows with it.
        max_length: a conversation is cut behind this many of the draft's tokens.
        teacher: rows of the data, or the target itself, run beside the draft.
        precision: of the forward pass; weights are float32. auto: bfloat16 where it is fast.
        seed: fixes the order of the data.

    Raises:
        ConfigError: a number is outside its range.
    """

    loss: LossSettings = field(default_factory=LossSettings)
    epochs: float = 3.0
    learning_rate: float = 5e-4
    warmup: float = 0.05
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    batch_tokens: int = 8192
    part_tokens: int = 4096
    max_length: int = 1024
    teacher: Teacher = "stored"
    precision: Precision = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate", "max_grad_norm", "batch_tokens", "part_tokens"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value:g}; it must be above 0")
        if self.max_length < 2:
            raise ConfigError(f"max_length is {self.max_length}; it must be 2 or more")
        if not 0 <= self.warmup <= 1:
            raise ConfigError(f"warmup is {self.warmup:g}; it is a share of all steps, in 0..1")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay is {self.weight_decay:g}; it must be 0 or more")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; it must be 0 or more")
        for name, kinds in (("teacher", Teacher), ("precision", Precision)):
            if (value := getattr(self, name)) not in get_args(kinds):
                raise ConfigError(f"{name} {value!r} is none of {', '.join(get_args(kinds))}")

    def flat(self) -> dict[str, object]:
        """By name, as JSON has it; the loss's names behind `loss.`."""
        values = asdict(self)
        loss = values.pop("loss")
        return values | {f"loss.{name}": value for name, value in loss.items()}


def refuse_changes(begun: Mapping[str, object], wanted: Mapping[str, object], where: str) -> None:
    """See to it that a run goes on as it was begun.

    Args:
        begun: what the run was begun with, by name.
        wanted: what it would go on with.
        where: names the run in the message.

    Raises:
        TrainingError: a value differs; it names the setting and both values.
    """
    for name in sorted(begun.keys() | wanted.keys()):
        before, now = begun.get(name), wanted.get(name)
        if before != now:
            raise TrainingError(
                f"{where} was begun with {name} {_short(before)}, and this run has {_short(now)}; "
                "give the same to go on there, or another --out to begin anew"
            )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
