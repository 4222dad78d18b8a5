"""Rows of logits as tensors: noise, edits, selection, and what of them comes to the host.

The counterpart of `noise`, `select` and `race` for rows on an accelerator. What decides anything is
exact on every device: integers, comparisons of the row's own values, and float64 sums, products
and quotients rounded as IEEE 754 says. Exponentials and logarithms, which devices round as they
like, only screen, with a margin; the host decides among what is left.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.sampling.noise import GAMMA, LARGEST_UNIFORM, MIX_1, MIX_2, stream
from outrider.sampling.processors import Change, Edit

__all__ = [
    "MARGIN",
    "DeviceEdit",
    "bring",
    "contenders",
    "device_uniforms",
    "largest",
    "log_weights",
    "near_nucleus",
    "where",
]

MARGIN = 1e-6
"""How far below a bound something screened may lie: far more than any device's rounding."""


_NARROWINGS = 4
"""Turns that `near_nucleus` takes: of a peaked row they leave a twentieth of what one does."""


def device_uniforms(key: int, choice: int, position: int, token_ids: Tensor) -> Tensor:
    """The bits of `noise.uniforms`, float64 of shape [m], on the device of `token_ids`.

    Args:
        key, choice, position: as there.
        token_ids: int64, shape [m].
    """
    return _uniforms(_counters_of(token_ids), stream(key, choice, position))


def contenders(row: Tensor, temperature: float, place: tuple[int, int, int]) -> Tensor:
    """Ids of the tokens that may win the Gumbel race of a whole row, int64, ascending.

    Args:
        row: shape [V].
        temperature: above 0.
        place: key, choice and position of the noise.
    """
    noise = _uniforms(_counters(row.numel(), row.device), stream(*place)).log_().neg_().log_()
    scores = log_weights(row, temperature).sub_(noise)
    return where(scores >= scores.max() - MARGIN)


def log_weights(row: Tensor, temperature: float) -> Tensor:
    """Log probabilities up to one additive constant, float64 of shape [V]."""
    # Some devices multiply by the inverse, which below this is infinite.
    return (row.double() - row.max()).div_(max(temperature, 1e-300))


def largest(row: Tensor, k: int) -> Tensor:
    """Indices of the k largest values, ascending, the lowest of equals first: int64, [min(k, V)].

    `torch.topk` promises no order among equals, so it only says how large the last one is.
    """
    if not 0 < k < row.numel():
        return torch.arange(min(k, row.numel()), device=row.device)
    least = torch.topk(row, k).values[-1]
    above = where(row > least)
    equal = where(row == least)[: k - above.numel()]
    return torch.cat((above, equal)).sort().values


def near_nucleus(weights: Tensor, top_p: float) -> Tensor:
    """The nucleus and some more, bool of shape [V].

    Weights below a bound are dropped as long as all of them hold less than half of what the nucleus
    leaves out. What may still be dropped, spread evenly over what is left, is the next bound.

    Args:
        weights: shape [V], not negative.
        top_p: in (0, 1).
    """
    spare = weights.sum() * (0.5 * (1.0 - top_p))
    bound = spare / weights.numel()
    for _ in range(_NARROWINGS):
        kept = weights > bound
        bound = (spare - weights.masked_fill(kept, 0.0).sum()) / kept.sum()
    return weights > bound


def where(condition: Tensor) -> Tensor:
    """Indices, ascending, at which the condition holds: int64 of shape [m]."""
    return torch.nonzero(condition).flatten()


def bring(
    row: Tensor, ids: Tensor, *numbers: Tensor
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], list[float]]:
    """Ids, their logits, and single numbers, on the host, in one copy."""
    alone = torch.stack([number.double() for number in numbers])
    packed = torch.cat((alone, ids.double(), row[ids].double())).cpu().numpy()  # exact
    found = packed[len(numbers) :].reshape(2, -1)
    return found[0].astype(np.int64), found[1].astype(np.float32), packed[: len(numbers)].tolist()


class DeviceEdit:
    """An `Edit` with its numbers on a device."""

    def __init__(self, edit: Edit, device: torch.device) -> None:
        self._change = edit.change
        self._where = torch.from_numpy(edit.where).to(device)
        self._amounts = torch.from_numpy(edit.amounts).to(device)

    def apply(self, row: Tensor) -> None:
        """Change a row in place, to the bits that `Edit.apply` gives."""
        if self._change is Change.EXCLUDE:
            row[self._where] = -math.inf
            return
        found = row[self._where].double()
        if self._change is Change.KEEP:
            row.fill_(-math.inf)
        elif self._change is Change.ADD:
            found = found + self._amounts
        else:
            found = torch.where(found > 0, found / self._amounts, found * self._amounts)
        row[self._where] = found.to(row.dtype)


def _uniforms(counters: Tensor, start: int) -> Tensor:
    hashed = counters + _signed(start)
    for shift, factor in ((30, MIX_1), (27, MIX_2)):
        hashed ^= _shifted(hashed, shift)
        hashed *= _signed(factor)
    hashed ^= _shifted(hashed, 31)
    uniform = _shifted(hashed, 11).double().add_(0.5).mul_(2.0**-53)
    return uniform.clamp_(max=LARGEST_UNIFORM)


def _counters_of(token_ids: Tensor) -> Tensor:
    return (token_ids + 1) * _signed(GAMMA)


@functools.lru_cache(maxsize=8)
def _counters(vocab_size: int, device: torch.device) -> Tensor:
    """The same for every id of a vocabulary; never written to."""
    return _counters_of(torch.arange(vocab_size, device=device))


def _signed(value: int) -> int:
    """The same 64 bits as a signed integer; sums and products wrap around alike."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shifted(values: Tensor, count: int) -> Tensor:
    """A logical shift to the right; that of signed integers fills up with the sign."""
    return (values >> count) & ((1 << (64 - count)) - 1)
