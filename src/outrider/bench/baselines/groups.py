"""Which modes run together, and in which order.

Not all peers fit into memory at once. Those that do form a group; all its processes are up, one
runs and the others are stopped, and every prompt goes through all its modes before the next.
Anchors are in every group, so that ratios to them are always taken within one group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import TypeVar

from outrider.bench.baselines.modes import Comparison

__all__ = ["Group", "make_groups", "rotated"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Group:
    """Modes that are run together, by name, in the order of the modes file."""

    modes: tuple[str, ...]

    @property
    def key(self) -> str:
        """The same for the same modes, whatever their order."""
        return sha256("\n".join(sorted(self.modes)).encode()).hexdigest()[:8]


def make_groups(comparison: Comparison, memory_gb: float) -> list[Group]:
    """As few groups as first-fit finds. A process too large for the rest of a group has its own.

    Args:
        comparison: the modes and what their processes take.
        memory_gb: how much all processes of a group may take together.
    """
    modes_of: dict[str, list[str]] = {}
    for name, mode in comparison.modes.items():
        modes_of.setdefault(mode.process, []).append(name)
    anchors = [name for name, mode in comparison.modes.items() if mode.anchor]
    anchored = {comparison.modes[name].process for name in anchors}
    free = memory_gb - sum(comparison.processes[name].memory_gb for name in anchored)
    groups: list[tuple[float, list[str]]] = []
    for process, modes in modes_of.items():
        size = 0.0 if process in anchored else comparison.processes[process].memory_gb
        for number, (left, held) in enumerate(groups):
            if size <= left:
                groups[number] = (left - size, held + modes)
                break
        else:
            groups.append((free - size, list(modes)))
    wanted = [set(chain(anchors, held)) for _, held in groups]
    return [Group(tuple(name for name in comparison.modes if name in held)) for held in wanted]


def rotated(items: Sequence[_T], turn: int) -> Iterator[_T]:
    """All items, beginning `turn` places later, so that none is always first."""
    start = turn % len(items)
    yield from items[start:]
    yield from items[:start]
