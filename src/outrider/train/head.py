"""A draft's head and its loss, a few rows at a time: logits of all rows never exist at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Scores", "rows_at_once", "summed_loss"]

_LOGITS_AT_ONCE: Final = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Sums over some rows.

    Attributes:
        loss: scalar, differentiable in the logits.
        counts: [C], whatever else is counted; no gradient.
    """

    loss: Tensor
    counts: Tensor


def rows_at_once(vocab_size: int) -> int:
    """How many rows of logits to hold: 16 MiB of them in float32, and a few copies."""
    return max(_LOGITS_AT_ONCE // vocab_size, 1)


def summed_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    score: Callable[[Tensor, slice], Scores],
    num_counts: int,
    chunk: int,
) -> Scores:
    """The sums over all rows, with exact gradients for `hidden`, `weight` and `bias`.

    The gradient of a chunk is taken as soon as its loss is known, so nothing is computed twice and
    only one chunk's logits are ever held. All is done in float32, or float64 if `hidden` is, also
    under autocast.

    Args:
        hidden: [N, H]; N may be 0.
        weight: [V, H].
        bias: [V].
        score: of logits [chunk, V] and the rows that they belong to.
        num_counts: length of `Scores.counts`.
        chunk: rows at once.
    """
    loss, counts = _Head.apply(  # type: ignore[no-untyped-call]  # torch declares it without types
        hidden, weight, bias, score, num_counts, chunk, torch.is_grad_enabled()
    )
    return Scores(loss, counts)


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        score: Callable[[Tensor, slice], Scores],
        num_counts: int,
        chunk: int,
        differentiate: bool,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        inputs = (hidden, weight, bias)
        wanted = [differentiate and needed for needed in ctx.needs_input_grad[:3]]
        gradients = [
            torch.zeros_like(each, dtype=dtype) if needed and each is not None else None
            for each, needed in zip(inputs, wanted, strict=True)
        ]
        loss = hidden.new_zeros((), dtype=dtype)
        counts = hidden.new_zeros(num_counts, dtype=dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            wide = weight.to(dtype)
            for start in range(0, hidden.shape[0], chunk):
                rows = slice(start, start + chunk)
                part = hidden[rows].to(dtype)
                logits = part @ wide.T
                if bias is not None:
                    logits += bias.to(dtype)
                logits.requires_grad_(any(wanted))
                with torch.set_grad_enabled(any(wanted)):
                    scores = score(logits, rows)
                loss += scores.loss.detach()
                counts += scores.counts
                if any(wanted):
                    (slope,) = torch.autograd.grad(scores.loss, logits)
                    _add(gradients, slope, part, wide, rows)
        ctx.save_for_backward(
            *(
                None if gradient is None or each is None else gradient.to(each.dtype)
                for gradient, each in zip(gradients, inputs, strict=True)
            )
        )
        ctx.mark_non_differentiable(counts)
        return loss, counts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (
            None if each is None else each * upstream.to(each.dtype) for each in ctx.saved_tensors
        )
        return (*gradients, None, None, None, None)


def _add(
    gradients: list[Tensor | None], slope: Tensor, part: Tensor, weight: Tensor, rows: slice
) -> None:
    of_hidden, of_weight, of_bias = gradients
    if of_hidden is not None:
        torch.mm(slope, weight, out=of_hidden[rows])
    if of_weight is not None:
        of_weight.addmm_(slope.T, part)
    if of_bias is not None:
        of_bias += slope.sum(0)
