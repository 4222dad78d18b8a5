import os
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from outrider.errors import CorruptModel
from outrider.models.identity import file_identity, weights_hash


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_weights(tmp_path, {"a": np.arange(5000.0), "b": np.ones((64, 64))})
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def write_weights(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    save_file(tensors, folder / "model.safetensors")


def test_a_hash_does_not_depend_on_place_or_time(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "model.safetensors"):
        (copy / name).write_bytes((folder / name).read_bytes())
        os.utime(copy / name, (1, 1))
    assert weights_hash(copy, "float32") == weights_hash(folder, "float32")


def test_text_files_do_not_count(folder: Path) -> None:
    before = weights_hash(folder, "float32")
    (folder / "tokenizer.json").write_text("{}")
    assert weights_hash(folder, "float32") == before


def test_the_element_type_counts(folder: Path) -> None:
    assert weights_hash(folder, "float32") != weights_hash(folder, "bfloat16")


def test_the_configuration_counts(folder: Path) -> None:
    before = weights_hash(folder, "float32")
    (folder / "config.json").write_text('{"rope_theta": 1}')
    assert weights_hash(folder, "float32") != before


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": np.arange(5000.0) + 1, "b": np.ones((64, 64))},
        {"a": np.arange(5000.0), "b": np.zeros((64, 64))},
        {"a": np.arange(5000.0), "c": np.ones((64, 64))},
        {"a": np.arange(5000.0), "b": np.ones((32, 128))},
    ],
    ids=["first tensor", "second tensor", "name", "shape"],
)
def test_every_tensor_counts(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    before = weights_hash(folder, "float32")
    write_weights(folder, tensors)
    assert weights_hash(folder, "float32") != before


def test_a_gigabyte_is_hashed_in_well_under_a_second(folder: Path) -> None:
    header = b'{"w":{"dtype":"F32","shape":[250000000],"data_offsets":[0,1000000000]}}'
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 1_000_000_000)
    start = time.perf_counter()
    weights_hash(folder, "float32")
    assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize("keep", [0, 4, 20, 1000])
def test_weights_cut_short_are_refused(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptModel, match=r"model\.safetensors"):
        weights_hash(folder, "float32")


@pytest.mark.parametrize(
    "header", [b"no json", b"[]", b'{"a": {}}', b'{"a": {"data_offsets": []}}']
)
def test_a_header_that_cannot_be_read_is_refused(folder: Path, header: bytes) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CorruptModel, match="header"):
        weights_hash(folder, "float32")


def test_a_file_is_another_once_its_content_or_its_time_changed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(5_000_000))
    first = file_identity(path)
    assert file_identity(path) == first
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"x")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    changed = file_identity(path)
    assert changed != first
    os.utime(path, ns=(1, 1))
    assert file_identity(path) not in (first, changed)
