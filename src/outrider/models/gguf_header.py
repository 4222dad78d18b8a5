"""The head of a GGUF file: its metadata and the shapes of its tensors.

The `gguf` library builds an array object for each of a vocabulary's hundred thousand strings, which
takes seconds; this reads the same bytes in a fraction of one. The tensors themselves are the
engine's to read. Format: GGUF versions 2 and 3, little endian, as its specification describes them.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from outrider.errors import CorruptModel, UnknownModel, UnsupportedModel

__all__ = ["GGUFHeader", "is_gguf", "read_gguf_header"]

_MAGIC: Final = b"GGUF"
_MAX_COUNT: Final = 2**24

_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a GGUF says before its weights.

    Attributes:
        metadata: values by key: numbers, booleans, strings, and lists of them.
        parameters: elements of all tensors together.
    """

    metadata: dict[str, Any]
    parameters: int


def is_gguf(path: Path) -> bool:
    """Whether a file begins as a GGUF does."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_gguf_header(path: Path) -> GGUFHeader:
    """Read the head of a GGUF file.

    Raises:
        UnknownModel: there is no such file, or it may not be read.
        CorruptModel: it is no GGUF, or cut short within its head.
        UnsupportedModel: a version or byte order that this does not read.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data, path).header()
    except ValueError as error:
        # An empty file cannot be mapped; a string may be no UTF-8.
        raise _corrupt(path, str(error)) from error
    except (struct.error, IndexError) as error:
        raise _corrupt(path, "it ends too early") from error
    except OSError as error:
        raise UnknownModel(f"cannot read {path} ({error.strerror}); check the path") from error


class _Cursor:
    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self._at = 0

    def header(self) -> GGUFHeader:
        if self._data[: len(_MAGIC)] != _MAGIC:
            raise _corrupt(self._path, "it does not begin with GGUF")
        self._at = len(_MAGIC)
        version = self._scalar("I")
        if version not in (2, 3):
            raise UnsupportedModel(
                f"{self._path} is a GGUF of version {version} or of another byte order; convert it "
                "to a little endian GGUF of version 3"
            )
        tensors, pairs = self._count(), self._count()
        metadata = {self._string(): self._value(self._scalar("I")) for _ in range(pairs)}
        return GGUFHeader(metadata, sum(self._elements() for _ in range(tensors)))

    def _elements(self) -> int:
        self._string()
        dimensions = self._scalar("I")
        if dimensions > 8:
            raise _corrupt(self._path, f"a tensor of {dimensions} dimensions")
        shape = [self._scalar("Q") for _ in range(dimensions)]
        self._at += 4 + 8  # type and offset
        return prod(shape)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise _corrupt(self._path, f"metadata of unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, count = self._scalar("I"), self._count()
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        if kind not in _SCALARS:
            raise _corrupt(self._path, f"an array of unknown type {kind}")
        values = list(struct.unpack_from(f"<{count}{_SCALARS[kind]}", self._data, self._at))
        self._at += count * struct.calcsize(f"<{_SCALARS[kind]}")
        return values

    def _string(self) -> str:
        (length,) = struct.unpack_from("<Q", self._data, self._at)
        start = self._at + 8
        self._at = start + length
        if self._at > len(self._data):
            raise IndexError
        return self._data[start : self._at].decode()

    def _count(self) -> int:
        count = int(self._scalar("Q"))
        if count > _MAX_COUNT:
            raise _corrupt(self._path, f"a list of {count} entries")
        return count

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return value


def _corrupt(path: Path, reason: str) -> CorruptModel:
    return CorruptModel(f"{path} is not a readable GGUF file ({reason}); get the file anew")
