"""Writing a safetensors file tensor by tensor, so that no model has to fit into memory.

The library's own functions want all tensors at once. Format: length of the header (u64, little
endian), header as JSON, tensors one after the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np

__all__ = ["SIZES", "Entry", "write_safetensors"]

SIZES: Final = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}
"""Bytes per element of what can be written."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to be written.

    Attributes:
        dtype: a name of `SIZES`.
        blocks: gives its bytes in order, as contiguous arrays of uint8.
    """

    dtype: str
    shape: tuple[int, ...]
    blocks: Callable[[], Iterable[np.ndarray[Any, Any]]]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return math.prod(self.shape) * SIZES[self.dtype]


def write_safetensors(
    output: BinaryIO, entries: Mapping[str, Entry], progress: Callable[[int, int], None]
) -> None:
    """Write all `entries`; `progress` is told bytes written and bytes to write. Raises OSError."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for name, entry in entries.items():
        header[name] = {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": (total, total + entry.nbytes),
        }
        total += entry.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # readers map the tensors, which wants them aligned
    output.write(len(encoded).to_bytes(8, "little"))
    output.write(encoded)
    written = 0
    for entry in entries.values():
        for block in entry.blocks():
            written += output.write(block.data)
            progress(written, total)
