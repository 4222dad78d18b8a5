from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from outrider.engine import convert_gguf, read_gguf_header
from outrider.errors import CorruptModel, UnknownModel, UnsupportedModel


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.001, 0.01, 0.5, 0.9999])
def test_a_truncated_file_is_corrupt(small: Path, tmp_path: Path, share: float) -> None:
    content = small.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CorruptModel, match=r"cut.gguf") as caught:
        convert_gguf(tmp_path / "cut.gguf", tmp_path, dtype=torch.float32)
    assert "\n" not in str(caught.value)


def test_any_other_file_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "other.gguf").write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(CorruptModel, match="does not begin with GGUF"):
        convert_gguf(tmp_path / "other.gguf", tmp_path, dtype=torch.float32)


@pytest.mark.parametrize("count", [2**63, 2**40])
def test_absurd_counts_are_corrupt_and_cost_nothing(tmp_path: Path, count: int) -> None:
    (tmp_path / "absurd.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, count, count))
    with pytest.raises(CorruptModel, match="not a whole GGUF file"):
        convert_gguf(tmp_path / "absurd.gguf", tmp_path, dtype=torch.float32)


def test_random_damage_never_escapes_as_a_foreign_error(small: Path, tmp_path: Path) -> None:
    content = small.read_bytes()
    random = np.random.default_rng(5)
    for _ in range(150):
        damaged = bytearray(content)
        for position in random.integers(0, 3500, 4):
            damaged[position] = random.integers(0, 256)
        (tmp_path / "damaged.gguf").write_bytes(damaged)
        try:
            convert_gguf(tmp_path / "damaged.gguf", tmp_path, dtype=torch.float32)
        except (CorruptModel, UnsupportedModel) as error:
            assert "\n" not in str(error)  # noqa: PT017 - some damage does no harm


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_other_versions_are_refused_by_number(small: Path, tmp_path: Path, version: int) -> None:
    content = small.read_bytes()
    (tmp_path / "v.gguf").write_bytes(content[:4] + struct.pack("<I", version) + content[8:])
    with pytest.raises(UnsupportedModel, match=f"GGUF version {version}"):
        convert_gguf(tmp_path / "v.gguf", tmp_path, dtype=torch.float32)


def test_a_vector_of_packed_blocks_is_refused(
    tmp_path: Path, make_model: Callable[..., Any], write_gguf: Callable[..., Any]
) -> None:
    factors = gguf.quants.quantize(np.ones((1, 32), "f4"), gguf.GGMLQuantizationType.Q8_0)[0]
    write_gguf(
        tmp_path / "model.gguf",
        make_model("llama"),
        "llama",
        extra=lambda writer: writer.add_tensor(
            "rope_freqs.weight", factors, raw_dtype=gguf.GGMLQuantizationType.Q8_0
        ),
    )
    with pytest.raises(UnsupportedModel, match=r"rope_freqs.weight.*vector in Q8_0"):
        convert_gguf(tmp_path / "model.gguf", tmp_path, dtype=torch.float32)


def write_metadata(path: Path, metadata: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        match value:
            case str():
                writer.add_string(key, value)
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_int32(key, value)
            case float():
                writer.add_float64(key, value)
            case list():
                writer.add_array(key, value)
    writer.add_tensor("a", np.zeros((2, 3), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_of_every_kind_is_read(tmp_path: Path) -> None:
    metadata = {
        "a.string": "ü 😀",
        "a.number": 7,
        "a.float": 0.5,
        "a.flag": True,
        "some.strings": ["x", "", "日本"],
        "some.floats": [0.5, -1.0],
        "some.ints": [1, -2, 3],
    }
    header = read_gguf_header(write_metadata(tmp_path / "m.gguf", metadata))
    assert {key: header.metadata[key] for key in metadata} == metadata
    assert header.num_parameters == 6


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"none\.gguf"):
        read_gguf_header(tmp_path / "none.gguf")
