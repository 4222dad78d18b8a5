"""Files that are written tensor by tensor, read back by the library of the format."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save_file

from outrider.engine.stream import SIZES, Entry, write_safetensors


def bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return tensor.reshape(-1).view(torch.uint8).numpy()


TENSORS = {
    "floats": torch.randn(3, 5),
    "halves": torch.randn(4, 7).half(),
    "brains": torch.randn(2, 3).bfloat16(),
    "codes": torch.arange(6, dtype=torch.uint8).view(2, 3),
    "vector": torch.randn(9),
    "nothing": torch.empty(0, 4),
}
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.uint8: "U8"}


def entry(tensor: torch.Tensor) -> Entry:
    """Given in blocks of a row."""
    rows = [bytes_of(row) for row in tensor]
    return Entry(NAMES[tensor.dtype], tuple(tensor.shape), lambda: rows)


ENTRIES = {name: entry(tensor) for name, tensor in TENSORS.items()}


def ignore(_done: int, _total: int) -> None:
    """Nobody asked for progress."""


def test_the_library_reads_back_every_tensor_of_every_type() -> None:
    output = io.BytesIO()
    write_safetensors(output, ENTRIES, ignore)
    found = load(output.getvalue())
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_all_types_that_can_be_written_are_tested() -> None:
    assert set(NAMES.values()) == SIZES.keys()
    for name, tensor in TENSORS.items():
        assert ENTRIES[name].nbytes == tensor.nbytes


def test_tensors_begin_at_a_multiple_of_8_and_the_file_says_that_it_is_of_torch(
    tmp_path: Path,
) -> None:
    with (tmp_path / "file").open("wb") as output:
        write_safetensors(output, ENTRIES, ignore)
    start = (tmp_path / "file").read_bytes()[:8]
    assert int.from_bytes(start, "little") % 8 == 0
    with safe_open(tmp_path / "file", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    save_file(TENSORS, tmp_path / "theirs")
    ours, theirs = ((tmp_path / name).stat().st_size for name in ("file", "theirs"))
    assert abs(ours - theirs) < 100


def test_progress_counts_every_block_up_to_the_whole() -> None:
    seen: list[tuple[int, int]] = []
    write_safetensors(io.BytesIO(), ENTRIES, lambda *step: seen.append(step))
    total = sum(tensor.nbytes for tensor in TENSORS.values())
    assert len(seen) == sum(len(tensor) for tensor in TENSORS.values())
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_a_tensor_is_made_when_its_turn_comes_and_not_before() -> None:
    output = io.BytesIO()

    def late() -> Iterator[np.ndarray[Any, Any]]:
        assert output.getvalue().endswith(b"\x01\x01\x01\x01")
        yield np.full(4, 2, np.uint8)

    early = Entry("U8", (4,), lambda: [np.full(4, 1, np.uint8)])
    write_safetensors(output, {"early": early, "late": Entry("U8", (4,), late)}, ignore)
    assert output.getvalue().endswith(b"\x01\x01\x01\x01\x02\x02\x02\x02")


def test_a_full_disk_is_told_to_the_caller() -> None:
    class Full(io.BytesIO):
        def write(self, data: Any, /) -> int:
            raise OSError(errno.ENOSPC, "no space left")

    with pytest.raises(OSError, match="no space left"):
        write_safetensors(Full(), ENTRIES, ignore)
