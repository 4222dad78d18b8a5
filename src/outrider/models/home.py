"""The folder in which models are kept.

    HOME/                            `~/.cache/outrider`, or what OUTRIDER_HOME says
      fetched/NAME/FILE              files of the catalogue, as pinned
      converted/KEY/                 a GGUF as a Hugging Face folder, ready for the engine:
        config.json, model.safetensors, tokenizer.json, tokenizer_config.json,
        generation_config.json, outrider.json (where it came from, and the hash of its weights)
      staging/RANDOM/                work in progress; becomes one of the above by a rename, or goes
      locks/NAME.lock                held by the process that makes one of the above

Models of the hub stay in the hub client's own cache, shared with other programs. Everything here
can be deleted at any time; it is made again when needed.
"""

from __future__ import annotations

import errno
import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from outrider.errors import FetchFailed

__all__ = ["move_into_place", "one_at_a_time", "require_space", "staging"]

_ABANDONED_S: Final = 24 * 3600.0
_LOCK_POLL_S: Final = 0.1


@contextmanager
def staging(home: Path) -> Iterator[Path]:
    """A new empty folder on the file system of `home`; deleted however the block ends.

    What processes left behind that were killed more than a day ago is deleted too.

    Raises:
        FetchFailed: `home` cannot be written, or its disk filled up within the block.
    """
    parent = home / "staging"
    with _disk_errors(home):
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        with _disk_errors(home):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def one_at_a_time(home: Path, name: str) -> Iterator[None]:
    """Wait until no other process is within a block of the same name.

    The lock goes with its process, however that ends. On a file system without locks the block runs
    at
    once: staging and renaming keep it correct, the work is only done twice.
    """
    with _disk_errors(home):
        (home / "locks").mkdir(parents=True, exist_ok=True)
        lock = (home / "locks" / f"{name}.lock").open("w")
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOCK_POLL_S)
            except OSError:
                break
            else:
                break
        yield


def move_into_place(made: Path, place: Path) -> None:
    """Rename a finished file or folder to where it belongs.

    If another process was first with a folder, its result stays: both made the same.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        made.rename(place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def require_space(home: Path, needed: int, what: str) -> None:
    """Check, before work begins, that the disk of `home` has `needed` bytes free.

    Raises:
        FetchFailed: it has not.
    """
    existing = next(folder for folder in (home, *home.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise FetchFailed(
            f"{what} needs {needed / 1e6:,.0f} MB on the disk of {home}, which has "
            f"{free / 1e6:,.0f} MB free; make room, or set OUTRIDER_HOME to a folder on a "
            "larger disk"
        )


@contextmanager
def _disk_errors(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchFailed(
                f"the disk of {home} is full; make room, or set OUTRIDER_HOME to a folder on a "
                "larger disk"
            ) from error
        raise FetchFailed(
            f"cannot write to {home} ({error.strerror or error}); set OUTRIDER_HOME to a folder "
            "that you can write to"
        ) from error


def _sweep(parent: Path) -> None:
    for leftover in parent.iterdir():
        try:
            age = time.time() - leftover.stat().st_mtime
        except FileNotFoundError:
            continue  # its owner just finished
        if age > _ABANDONED_S:
            shutil.rmtree(leftover, ignore_errors=True)
