"""Kills process groups whose owner is gone. Runs as a process of its own, with nothing but Python.

Each line on standard input is a group: `+123` is to be watched, `-123` no more. When the input
ends, for whatever reason, every group still watched is killed, stopped ones too.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable

__all__ = ["watch"]


def watch(lines: Iterable[str]) -> set[int]:
    """The groups that are still to be watched when `lines` end."""
    groups: set[int] = set()
    for line in lines:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    return groups


if __name__ == "__main__":
    for group in watch(sys.stdin):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue
