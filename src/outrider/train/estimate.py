"""How a draft does on held-out conversations, while it is trained.

Text is the target's own, and the draft reads it as it stands: an estimate of what would be
accepted, not a measurement of serving. `outrider train evaluate` judges a finished draft.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.train.batches import Batch, Item, batch_rows, collate
from outrider.train.draft_loss import DraftLoss
from outrider.train.head import rows_at_once
from outrider.train.rows import NEVER, acceptance_bounds

__all__ = ["LOOKAHEAD", "Estimate", "Totals", "measure", "rounds"]

LOOKAHEAD: Final = 4
"""Tokens per draft that the estimate assumes."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Means over the held-out tokens.

    Attributes:
        acceptance: lower bound of the mean of the sum of min(target, draft), at the temperature
            trained at.
        acceptance_most: its upper bound: what lies between is outside the stored rows.
        agreement: share of tokens where target and draft find the same token likeliest.
        tokens_per_round: at temperature 0, with `LOOKAHEAD` drafted tokens: tokens over rounds, if
            each round takes the tokens as long as both agree, and one of the target's own.
        tokens: how many were looked at.
    """

    acceptance: float
    acceptance_most: float
    agreement: float
    tokens_per_round: float
    tokens: int

    def values(self) -> dict[str, float]:
        return asdict(self)


class Totals:
    """Sums that make an `Estimate`; those of several processes may be added."""

    def __init__(self, sums: Tensor | None = None) -> None:
        """Takes float64 [5], in the order of `Estimate`'s means, with rounds for the fourth."""
        self.sums = torch.zeros(5, dtype=torch.float64) if sums is None else sums

    def add(self, lower: Tensor, upper: Tensor, same: Tensor, items: Iterable[Item]) -> None:
        """Count N tokens, [N] each, those of `items` one after the other."""
        start, agreed, num_rounds = 0, same.numpy(), 0
        for item in items:
            end = start + len(item.labels)
            for run in _runs(item.target_positions):
                num_rounds += rounds(agreed[start:end][run], LOOKAHEAD)
            start = end
        counted = (lower.double().sum(), upper.double().sum(), same.sum())
        self.sums += torch.tensor(
            [*(each.item() for each in counted), num_rounds, len(same)], dtype=torch.float64
        )

    def estimate(self) -> Estimate:
        lower, upper, agreed, num_rounds, tokens = self.sums.tolist()
        return Estimate(
            acceptance=lower / max(tokens, 1),
            acceptance_most=upper / max(tokens, 1),
            agreement=agreed / max(tokens, 1),
            tokens_per_round=tokens / max(num_rounds, 1),
            tokens=int(tokens),
        )


@torch.no_grad()
def measure(
    module: DraftLoss, items: list[Item], temperature: float, device: torch.device, totals: Totals
) -> None:
    """Add what the draft says to some conversations, read side by side, to `totals`."""
    batch: Batch = {name: each.to(device) for name, each in collate(items).items()}
    hidden = module.hidden(batch)
    weight, bias, never = module.head
    rows = batch_rows(batch)
    parts = []
    chunk = rows_at_once(weight.shape[0])
    for start in range(0, max(len(rows), 1), chunk):
        part = slice(start, start + chunk)
        scores = torch.nn.functional.linear(
            hidden[part].float(), weight.float(), None if bias is None else bias.float()
        ) / (temperature or 1.0)
        if never is not None:
            scores = scores.masked_fill(never, NEVER)
        lower, upper = acceptance_bounds(rows[part], scores)
        parts.append((lower, upper, scores.argmax(1) == rows[part].argmax()))
    lower, upper, same = (torch.cat(each).cpu() for each in zip(*parts, strict=True))
    totals.add(lower, upper, same, items)


def rounds(agreed: npt.NDArray[np.bool_], lookahead: int) -> int:
    """Rounds that an answer of len(agreed) tokens takes.

    Args:
        agreed: whether the drafted token would be accepted at each place.
        lookahead: tokens drafted per round.
    """
    place, count = 0, 0
    while place < len(agreed):
        drafted = agreed[place : place + lookahead]
        place += 1 + (len(drafted) if drafted.all() else int(np.argmin(drafted)))
        count += 1
    return count


def _runs(positions: npt.NDArray[np.int32]) -> list[slice]:
    """Where answers begin and end among the predicted tokens of a conversation."""
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    edges = [0, *breaks.tolist(), len(positions)]
    return [slice(start, end) for start, end in pairwise(edges)]
