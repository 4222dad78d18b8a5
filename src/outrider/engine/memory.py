"""How much memory there is to use: of an accelerator, or of this machine within its container."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

__all__ = ["available_bytes"]

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int:
    """Bytes that can be taken on `device` without anything else having to give way."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = [_machine()]
    with suppress(OSError, ValueError):  # no such limit, which reads "max", or no such file system
        limit = int((_CGROUP / "memory.max").read_text())
        found.append(limit - int((_CGROUP / "memory.current").read_text()))
    return max(min(found), 0)


def _machine() -> int:
    with suppress(OSError):
        for line in _MEMINFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    # Elsewhere only the whole is told; half of it may well be in use.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
