import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.errors import CorruptModel, OutriderError, UnknownModel, UnsupportedModel
from outrider.models.gguf_header import is_gguf, read_gguf_header

Write = Callable[..., Path]


def test_metadata_and_the_number_of_parameters_are_read(write_gguf: Write) -> None:
    metadata: dict[str, Any] = {
        "a.string": "ü 😀",
        "a.number": 7,
        "a.float": 0.5,
        "a.flag": True,
        "some.strings": ["x", "", "日本"],
        "some.floats": [0.5, -1.0],
        "some.ints": [1, -2, 3],
    }
    header = read_gguf_header(write_gguf(metadata))
    assert {key: header.metadata[key] for key in metadata} == metadata
    assert header.metadata["general.architecture"] == "llama"
    assert header.parameters == 6


def test_a_large_vocabulary_is_read_in_a_fraction_of_a_second(write_gguf: Write) -> None:
    path = write_gguf({"tokens": [f"token {i}" for i in range(150_000)]})
    start = time.perf_counter()
    header = read_gguf_header(path)
    assert time.perf_counter() - start < 1
    assert len(header.metadata["tokens"]) == 150_000


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_a_file_cut_short_or_damaged_anywhere_is_refused_or_read(
    write_gguf: Write, tmp_path: Path, data: st.DataObject
) -> None:
    content = write_gguf({"a": "text", "b": ["x", "y"], "c": [1, 2]}).read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    at = data.draw(st.integers(0, len(content) - 1))
    damaged = bytearray(content)
    damaged[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged[:cut])
    try:
        read_gguf_header(path)
    except OutriderError as error:
        assert "\n" not in str(error)  # noqa: PT017 # some damage leaves a readable file
        assert str(path) in str(error)  # noqa: PT017 # likewise


def test_a_file_that_ends_within_its_head_is_corrupt(write_gguf: Write) -> None:
    path = write_gguf({"a": "text"})
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(CorruptModel, match="ends too early"):
        read_gguf_header(path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\x03\x04 something else entirely"])
def test_another_file_is_no_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(CorruptModel, match="not a readable GGUF"):
        read_gguf_header(path)


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_other_versions_and_byte_orders_are_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, 0))
    with pytest.raises(UnsupportedModel, match=str(version)):
        read_gguf_header(path)


def test_a_list_of_absurd_length_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60))
    with pytest.raises(CorruptModel, match="entries"):
        read_gguf_header(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"none\.gguf"):
        read_gguf_header(tmp_path / "none.gguf")


def test_a_gguf_is_known_by_its_first_bytes(write_gguf: Write, tmp_path: Path) -> None:
    (tmp_path / "other.gguf").write_text("no")
    assert is_gguf(write_gguf({}))
    assert not is_gguf(tmp_path / "other.gguf")
