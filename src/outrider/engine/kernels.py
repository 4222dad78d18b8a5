"""The compiled kernels from Python: packed linear layers and the threads that run them.

The C side trusts what it is given; every pointer that goes there is made here, from a tensor of the
right type and shape that outlives the call.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any, Final

import torch
from torch import Tensor

from outrider.engine.fourbit import GROUP, FourBit
from outrider.errors import ConfigError

__all__ = [
    "PackedLinear",
    "Threads",
    "WeightMemory",
    "kernels",
    "kernels_available",
    "pointer",
]

_KINDS: Final = {
    "float *": torch.float32,
    "int32_t *": torch.int32,
    "int64_t *": torch.int64,
    "int8_t *": torch.int8,
    "uint8_t *": torch.uint8,
    "uint16_t *": torch.float16,
}

_LINE: Final = 64  # bytes of a cache line
_PIECE: Final = 1 << 26
"""Bytes taken from the system at a time. So much comes fresh, and what is never written to takes no
memory; less may have been used before, and then all of it counts."""
_PANEL: Final = 16  # outputs; what is given per output is padded to whole panels


def kernels_available() -> bool:
    """Whether the compiled kernels were built when the package was installed."""
    try:
        kernels()
    except ConfigError:
        return False
    return True


def kernels() -> Any:
    """The extension module.

    Raises:
        ConfigError: it was not built.
    """
    try:
        return importlib.import_module("outrider._native")
    except ImportError as error:
        raise ConfigError(
            f"int8 and int4 need compiled kernels, which this installation lacks ({error}); install"
            " a C compiler and outrider anew, or choose float32"
        ) from None


def pointer(tensor: Tensor | None, kind: str) -> Any:
    """Where a contiguous tensor's numbers lie, as a C pointer such as `float *`; None is NULL."""
    ffi = kernels().ffi
    if tensor is None:
        return ffi.NULL
    if not tensor.is_contiguous() or tensor.device.type != "cpu" or tensor.dtype != _KINDS[kind]:
        raise TypeError(f"{tensor.dtype} of strides {tensor.stride()} is no {kind}")
    return ffi.cast(kind, tensor.data_ptr())


class WeightMemory:
    """Memory for packed weights, in large pieces: the fewer pages a pass has to look up, the faster
    it reads them."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, num_bytes: int) -> Tensor:
        """So many bytes of uint8, at the start of a cache line; they live as long as the tensor."""
        num_bytes_up = -(-num_bytes // _LINE) * _LINE
        if num_bytes_up > self._left.numel():
            self._left = torch.empty(max(num_bytes_up, _PIECE) + _LINE, dtype=torch.uint8)
            native = kernels()
            native.lib.od_advise(pointer(self._left, "uint8_t *"), self._left.numel())
            self._left = self._left[-self._left.data_ptr() % _LINE :]
        taken, self._left = self._left[:num_bytes], self._left[num_bytes_up:]
        return taken


class PackedLinear:
    """`rows @ weight.T + bias` with weights of 8 or 4 bits, laid out for the kernels.

    Attributes:
        outputs, inputs: its widths.
        bits: 8 or 4.
    """

    __slots__ = ("_bias", "_packed", "_scale", "bits", "inputs", "outputs")

    def __init__(
        self,
        bits: int,
        outputs: int,
        inputs: int,
        packed: Tensor,
        scale: Tensor | None,
        bias: Tensor | None,
    ) -> None:
        self.bits = bits
        self.outputs = outputs
        self.inputs = inputs
        self._packed = packed
        self._scale = scale
        self._bias = bias

    @classmethod
    def int8(
        cls,
        weight: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        order: Tensor | None = None,
        *,
        memory: WeightMemory | None = None,
    ) -> PackedLinear:
        """From weights [out, in] of int8, each times its output's scale [out].

        With `order`, [out], output i is what would else be output order[i]. `memory` is where it
        goes. Raises ValueError if the shapes do not fit together.
        """
        outputs, inputs = weight.shape
        _check_shapes((scale, (outputs,)), (bias, (outputs,)))
        weight = weight.contiguous()  # held here: a pointer keeps nothing alive
        rows = _rows(order, outputs)
        lib = kernels().lib
        packed = (memory or WeightMemory()).take(lib.od_packed_bytes(lib.OD_INT8, outputs, inputs))
        lib.od_pack_int8(
            pointer(weight, "int8_t *"),
            pointer(rows, "int32_t *"),
            outputs,
            inputs,
            pointer(packed, "uint8_t *"),
        )
        return cls(8, outputs, inputs, packed, _padded(scale, order), _padded(bias, order))

    @classmethod
    def int4(
        cls,
        weight: FourBit,
        bias: Tensor | None,
        order: Tensor | None = None,
        *,
        memory: WeightMemory | None = None,
    ) -> PackedLinear:
        """From weights of 4 bits; the rest as for `int8`."""
        outputs, inputs = weight.shape
        groups = (outputs, inputs // GROUP)
        _check_shapes(
            (weight.codes, (outputs, groups[1] * GROUP // 2)),
            (weight.steps, groups),
            (weight.offsets, groups),
            (bias, (outputs,)),
        )
        codes, steps = weight.codes.contiguous(), weight.steps.contiguous()
        offsets = weight.offsets.contiguous()
        rows = _rows(order, outputs)
        lib = kernels().lib
        packed = (memory or WeightMemory()).take(lib.od_packed_bytes(lib.OD_INT4, outputs, inputs))
        lib.od_pack_int4(
            pointer(codes, "uint8_t *"),
            pointer(steps, "uint16_t *"),
            pointer(offsets, "uint16_t *"),
            pointer(rows, "int32_t *"),
            outputs,
            inputs,
            pointer(packed, "uint8_t *"),
        )
        return cls(4, outputs, inputs, packed, None, _padded(bias, order))

    @property
    def nbytes(self) -> int:
        """Memory that it takes, and that one step reads."""
        return sum(t.nbytes for t in (self._packed, self._scale, self._bias) if t is not None)

    def describe(self, target: Any) -> None:
        """Fill in an `od_linear`, which is good for as long as this object lives."""
        lib = kernels().lib
        target.format = lib.OD_INT8 if self.bits == 8 else lib.OD_INT4
        target.outputs = self.outputs
        target.inputs = self.inputs
        target.packed = pointer(self._packed, "uint8_t *")
        target.scale = pointer(self._scale, "float *")
        target.bias = pointer(self._bias, "float *")

    def run(self, rows: Tensor, threads: Threads) -> Tensor:
        """[N, in] to [N, out], both float32. For tests and measurements."""
        _check_shapes((rows, (rows.shape[0], self.inputs)))
        native = kernels()
        linear = native.ffi.new("od_linear *")
        self.describe(linear)
        rows = rows.contiguous()
        result = torch.empty(rows.shape[0], self.outputs)
        threads.call(
            native.lib.od_linear_run,
            linear,
            pointer(rows, "float *"),
            rows.shape[0],
            pointer(result, "float *"),
        )
        return result


class Threads:
    """Threads that compute together. One call at a time; others wait."""

    def __init__(self, count: int) -> None:
        """Raises ConfigError if so many threads cannot be started."""
        native = kernels()
        pool = native.lib.od_pool_new(count)
        if pool == native.ffi.NULL:
            raise ConfigError(f"{count} compute threads cannot be started; set engine.threads")
        self._pool = native.ffi.gc(pool, native.lib.od_pool_free)
        self._lock = threading.Lock()

    def call(self, function: Any, *arguments: Any) -> None:
        """Call a C function that takes a pool first.

        Raises:
            MemoryError: there was none left for its buffers.
        """
        with self._lock:
            if function(self._pool, *arguments):
                raise MemoryError("no memory left for the buffers of a forward pass")


def _check_shapes(*tensors: tuple[Tensor | None, tuple[int, ...]]) -> None:
    for tensor, shape in tensors:
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"a tensor of shape {list(tensor.shape)} must be {list(shape)}")


def _rows(order: Tensor | None, outputs: int) -> Tensor | None:
    if order is None:
        return None
    _check_shapes((order, (outputs,)))
    if not 0 <= int(order.min()) <= int(order.max()) < outputs:
        raise ValueError(f"an order of {outputs} outputs names one that there is not")
    return order.to(torch.int32).contiguous()


def _padded(values: Tensor | None, order: Tensor | None) -> Tensor | None:
    """One number per output, in float32, up to a whole panel."""
    if values is None:
        return None
    if order is not None:
        values = values[order]
    padding = -values.shape[0] % _PANEL
    return torch.nn.functional.pad(values.float(), (0, padding)).contiguous()
