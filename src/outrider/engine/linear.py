"""The linear layer that all projections share.

Verifying n drafted tokens must cost nearly what one costs. On CPU in float32 that holds only for
weights packed beforehand for oneDNN: `torch.nn.functional.linear` picks other kernels for 2 to 8
rows than for one, about twice as slow, and its rows then differ in their last bits with the number
of rows.
"""

from __future__ import annotations

import functools
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Linear", "packing_available"]

_ROWS_HINT: Final = 8  # the row count that the packed layout is chosen for: a typical verification


@functools.cache
def packing_available() -> bool:
    """Whether this torch can run packed float32 weights on this CPU; tried on first call."""
    weight = torch.arange(6, dtype=torch.float32).reshape(3, 2)
    rows = torch.ones(2, 2)
    try:
        found = _run_packed(rows, _pack(weight), None)
    except (AttributeError, RuntimeError):  # no such operator, or not for this CPU
        return False
    return torch.allclose(found, rows @ weight.t())


class Linear:
    """`rows @ weight.T + bias`, weight [out, in].

    Where the weight is packed, the original is not kept.
    """

    __slots__ = ("_bias", "_packed", "_weight", "out_features")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features = weight.shape[0]
        self._bias = bias
        self._packed: Tensor | None = None
        self._weight: Tensor | None = None
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and packing_available():
            self._packed = _pack(weight)
        else:
            self._weight = weight

    @property
    def packed(self) -> bool:
        """Whether the weight is held in oneDNN's layout."""
        return self._packed is not None

    def __call__(self, rows: Tensor) -> Tensor:
        """[N, in] to [N, out]."""
        if self._packed is not None:
            return _run_packed(rows, self._packed, self._bias)
        assert self._weight is not None  # noqa: S101 - one of the two is always there
        return functional.linear(rows, self._weight, self._bias)


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(  # noqa: SLF001 - torch's only name for it
        weight, _ROWS_HINT
    )
    return packed


def _run_packed(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001 - torch's only name for it
        rows, packed, bias, "none", [], ""
    )
    return result
