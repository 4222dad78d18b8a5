"""Which loss a draft is trained with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from outrider.errors import ConfigError
from outrider.train.divergences import (
    Shared,
    forward_kl,
    jensen_shannon,
    likelihood_kl,
    lost_acceptance,
    negative_log_acceptance,
    reverse_kl,
)

__all__ = ["LossKind", "LossSettings", "per_token"]

LossKind = Literal["lk", "kl", "reverse_kl", "jsd", "tv", "log_alpha", "ce", "classic"]


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Which loss, and at what temperatures. `divergences` says what each is.

    Attributes:
        kind: `ce` is the cross-entropy of the target's token; `classic` is
            alpha KL T^2 + (1 - alpha) CE with KL at T = `kd_temperature`.
        temperature: that of serving, for the teacher's rows and for the draft.
        decay: of `lk`: how fast the acceptance takes over from KL.
        alpha: of `classic`: the share of KL.
        kd_temperature: of `classic`; None for `temperature`.

    Raises:
        ConfigError: a number is outside its range.
    """

    kind: LossKind = "lk"
    temperature: float = 1.0
    decay: float = 3.0
    alpha: float = 0.5
    kd_temperature: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(LossKind):
            raise ConfigError(f"loss {self.kind!r} is none of {', '.join(get_args(LossKind))}")
        for name, value in {
            "temperature": self.temperature,
            "decay": self.decay,
            "kd_temperature": self.kd_temperature or 0.0,
        }.items():
            if not 0 <= value < math.inf:
                raise ConfigError(f"the loss's {name} is {value:g}; it must be 0 or more")
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"the loss's alpha is {self.alpha:g}; it lies in 0..1")

    @property
    def teacher_temperature(self) -> float:
        """What the teacher's rows are to be made at."""
        if self.kind == "classic" and self.kd_temperature is not None:
            return self.kd_temperature
        return self.temperature


def per_token(shared: Shared, cross_entropy: Tensor, settings: LossSettings) -> Tensor:
    """[N], in nats, except where an acceptance is meant.

    Args:
        shared: N rows of teacher and draft, at `settings.teacher_temperature`.
        cross_entropy: [N], of the target's token under the draft, 0 where the draft lacks it.
    """
    match settings.kind:
        case "lk":
            loss = likelihood_kl(shared, settings.decay)
        case "kl":
            loss = forward_kl(shared)
        case "reverse_kl":
            loss = reverse_kl(shared)
        case "jsd":
            loss = jensen_shannon(shared)
        case "tv":
            loss = lost_acceptance(shared)
        case "log_alpha":
            loss = negative_log_acceptance(shared)
        case "ce":
            loss = cross_entropy
        case "classic":
            # T squared keeps the gradient's size over temperatures; greedy rows have no scale.
            scale = (settings.teacher_temperature or 1.0) ** 2
            soft = settings.alpha * scale * forward_kl(shared)
            loss = soft + (1 - settings.alpha) * cross_entropy
    return loss
