"""Values as people write them: lists, folders, files, sizes."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["file", "folder", "size", "split"]


def split(value: object) -> object:
    """`a,b` from the environment or the command line is the list of both."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)  # its errors are ValueErrors, as validators raise them
    return [part.strip() for part in value.split(",")]


def folder(value: object) -> object:
    """A folder as people write it: `~/x`; nothing at all is a mistake, not the current folder."""
    if isinstance(value, str) and not value.strip():
        raise ValueError("name a folder")
    return Path(value).expanduser().absolute() if isinstance(value, (str, Path)) else value


def file(value: object) -> object:
    """A file as people write it; nothing at all is none."""
    if isinstance(value, str):
        return Path(value).expanduser().absolute() if value.strip() else None
    return value


_UNITS = {
    "": 1,
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
}


def size(value: object) -> object:
    """Bytes as people write them: `2GB`, `512 MiB`, `1.5GB`, `auto`."""
    if not isinstance(value, str):
        return value
    if value.strip().lower() == "auto":
        return 0
    number = value.strip().rstrip("BKMGTIbkmgti ")
    unit = value.strip()[len(number) :].strip().upper()
    if unit not in _UNITS or not number.replace(".", "", 1).isdecimal():
        raise ValueError("write a size as in 2GB, 512MB, 1.5GiB, or auto")
    return int(float(number) * _UNITS[unit])
