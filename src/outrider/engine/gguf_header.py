"""The header of a GGUF file: metadata and where each tensor lies (format version 2 and 3).

The `gguf` library's own reader makes several objects for every string of a vocabulary, which takes
seconds; this reads the same bytes in a fraction of one. Every length in the file is a stranger's
and is checked.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from outrider.errors import CorruptModel, UnknownModel, UnsupportedModel

__all__ = ["GGUFHeader", "Scalar", "TensorInfo", "mapped_gguf", "read_gguf_header", "read_header"]

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor.

    Attributes:
        shape: outermost dimension first, as in torch (the file has it the other way round).
        quantization: how its rows are stored.
        offset, num_bytes: where it lies in the file.
    """

    name: str
    shape: tuple[int, ...]
    quantization: GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Metadata by key, and the tensors by name."""

    metadata: dict[str, Scalar | list[Scalar]]
    tensors: dict[str, TensorInfo]

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors together."""
        return sum(math.prod(info.shape) for info in self.tensors.values())


_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7
_SCALARS: Final = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    _BOOL: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32: Final = _SCALARS[4]
_U64: Final = _SCALARS[10]
_MAX_DIMENSIONS: Final = 4
_DEFAULT_ALIGNMENT: Final = 32


class _DamagedError(Exception):
    """What is wrong with the bytes; becomes a CorruptModel that also names the file."""


@contextmanager
def mapped_gguf(source: Path) -> Iterator[mmap.mmap]:
    """The bytes of a file, mapped.

    Raises:
        UnknownModel: there is no such file, or it may not be read.
        CorruptModel: it is empty.
    """
    try:
        file = source.open("rb")
    except OSError as error:
        raise UnknownModel(f"{source} cannot be opened ({error.strerror})") from error
    with file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise CorruptModel(f"{source} is empty; fetch the model again") from error
        with data:
            yield data


def read_gguf_header(source: Path) -> GGUFHeader:
    """The header of a GGUF file. Raises as `mapped_gguf` and `read_header` do."""
    with mapped_gguf(source) as data:
        return read_header(data, str(source))


def read_header(data: mmap.mmap, name: str) -> GGUFHeader:
    """Read the header of the GGUF file `name`, mapped as `data`.

    Raises:
        CorruptModel: not a GGUF file, or damaged, or shorter than its header says.
        UnsupportedModel: a version, byte order or quantization that is not read here; names it.
    """
    try:
        return _Reader(data).read(name)
    except (struct.error, OverflowError, UnicodeDecodeError, _DamagedError) as error:
        raise CorruptModel(
            f"{name} is not a whole GGUF file ({error}); fetch the model again"
        ) from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = 0

    def read(self, name: str) -> GGUFHeader:
        if self._data[:4] != b"GGUF":
            raise _DamagedError("it does not begin with GGUF")
        self._offset = 4
        version = self._number(_U32)
        if version not in (2, 3):
            raise UnsupportedModel(
                f"{name}: GGUF version {version} (or byte order) is not supported;"
                " convert the model to version 3, little-endian"
            )
        num_tensors, num_keys = self._number(_U64), self._number(_U64)
        metadata: dict[str, Scalar | list[Scalar]] = {}
        for _ in range(num_keys):
            key = self._name()
            metadata[key] = self._value(self._number(_U32))
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise _DamagedError(f"general.alignment is {alignment}")
        infos = [self._tensor_info(name) for _ in range(num_tensors)]
        base = -(-self._offset // alignment) * alignment
        return GGUFHeader(metadata, {info.name: self._placed(info, base) for info in infos})

    def _placed(self, info: TensorInfo, base: int) -> TensorInfo:
        offset = base + info.offset
        if offset + info.num_bytes > len(self._data):
            raise _DamagedError(
                f"tensor {info.name} ends at byte {offset + info.num_bytes} of {len(self._data)}"
            )
        return TensorInfo(info.name, info.shape, info.quantization, offset, info.num_bytes)

    def _tensor_info(self, file: str) -> TensorInfo:
        name = self._name()
        num_dimensions = self._number(_U32)
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise _DamagedError(f"tensor {name} has {num_dimensions} dimensions")
        shape = tuple(self._number(_U64) for _ in range(num_dimensions))[::-1]
        code, offset = self._number(_U32), self._number(_U64)
        try:
            quantization = GGMLQuantizationType(code)
        except ValueError:
            raise UnsupportedModel(
                f"{file}: tensor {name} has the unknown quantization {code};"
                " a newer gguf library may know it"
            ) from None
        block, block_bytes = GGML_QUANT_SIZES[quantization]
        if min(shape) < 1:
            raise _DamagedError(f"tensor {name} has shape {list(shape)}")
        if block > 1 and num_dimensions == 1:
            raise UnsupportedModel(
                f"{file}: tensor {name} is a vector in {quantization.name}, which is not supported;"
                " use a model that keeps its vectors in F32"
            )
        if shape[-1] % block:
            raise _DamagedError(f"tensor {name} has rows of {shape[-1]}, no multiple of {block}")
        num_bytes = math.prod(shape) // block * block_bytes
        return TensorInfo(name, shape, quantization, offset, num_bytes)

    def _value(self, kind: int) -> Scalar | list[Scalar]:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise _DamagedError(f"unknown value type {kind} at byte {self._offset}")
        layout = _SCALARS[kind]
        value: int | float | bool = layout.unpack_from(self._data, self._offset)[0]
        self._offset += layout.size
        return value

    def _array(self) -> list[Scalar]:
        kind, length = self._number(_U32), self._number(_U64)
        if length > len(self._data) - self._offset:
            raise _DamagedError(f"an array of {length} entries is longer than the file")
        if kind == _STRING:
            return [self._string() for _ in range(length)]
        if kind not in _SCALARS:
            raise _DamagedError(f"unknown array type {kind} at byte {self._offset}")
        layout = struct.Struct(f"<{length}{_SCALARS[kind].format[1:]}")
        values = layout.unpack_from(self._data, self._offset)
        self._offset += layout.size
        return list(values)

    def _name(self) -> str:
        text = self._string()
        # Names appear in messages, which are one line.
        if not text.isprintable():
            raise _DamagedError(f"unprintable name {text[:40]!r}")
        return text

    def _string(self) -> str:
        length = self._number(_U64)
        end = self._offset + length
        if end > len(self._data):
            raise _DamagedError(f"a text at byte {self._offset} is longer than the file")
        text = self._data[self._offset : end].decode("utf-8")
        self._offset = end
        return text

    def _number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack_from(self._data, self._offset)[0]
        self._offset += layout.size
        return value
