"""Short names for large files: hashes that take milliseconds, not the minutes that all bytes would.

Two different models differ in their shapes or in nearly every value of the tensors that training
touched, so a block out of the middle of every tensor tells them apart. This is identity, not
protection against somebody who builds a collision.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final

from outrider.errors import CorruptModel

__all__ = ["file_identity", "weights_hash"]

_BLOCK: Final = 4096
_BLOCKS: Final = 256
_MAX_HEADER: Final = 100_000_000


def weights_hash(folder: Path, dtype: str) -> str:
    """What a model computes, as a sha256 in hex.

    Over config.json, and over each safetensors file's name, size, header and a block out of every
    tensor, and over the element type that the engine runs it in.

    Raises:
        CorruptModel: a file is cut short or no safetensors file.
    """
    digest = sha256(dtype.encode())
    digest.update((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"\n{path.name} {size}\n".encode())
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(size, _MAX_HEADER):
                raise _corrupt(path, "its header is longer than the file")
            header = file.read(length)
            digest.update(header)
            for start, end in _extents(path, header):
                if 8 + length + end > size:
                    raise _corrupt(path, "it ends too early")
                middle = (start + end) // 2
                _add_block(digest, file, 8 + length + max(start, middle - _BLOCK // 2))
    return digest.hexdigest()


def file_identity(path: Path) -> str:
    """Which file this is, as a sha256 in hex.

    Over its size, its time of change, its beginning and sampled blocks.
    """
    stat = path.stat()
    digest = sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode())
    with path.open("rb") as file:
        digest.update(file.read(_BLOCKS * _BLOCK))
        for index in range(_BLOCKS):
            _add_block(digest, file, stat.st_size * index // _BLOCKS)
    return digest.hexdigest()


def _add_block(digest: Any, file: BinaryIO, offset: int) -> None:
    file.seek(offset)
    digest.update(file.read(_BLOCK))


def _extents(path: Path, header: bytes) -> list[tuple[int, int]]:
    """First and last byte of every tensor, counted from the end of the header, in order."""
    try:
        entries: dict[str, Any] = json.loads(header)
        return sorted(
            (int(entry["data_offsets"][0]), int(entry["data_offsets"][1]))
            for name, entry in entries.items()
            if name != "__metadata__"
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise _corrupt(path, "its header cannot be read") from error


def _corrupt(path: Path, reason: str) -> CorruptModel:
    return CorruptModel(f"{path} is not a readable safetensors file ({reason}); get it anew")
