"""Which of several equal servers a session goes to: consistent hashing with bounded load.

Every server ranks the key by a hash of both (rendezvous hashing), so that a server which comes or
goes moves no sessions but its own. A session goes to the first in rank that holds no more than its
share of all sessions, times 1.25: what begins alike meets, and nobody drowns. The bound is that of
Mirrokni, Thorup and Zadimoghaddam (2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np

from outrider.targets.base import OpenRequest

__all__ = ["placement_key", "rank"]

_BEGINNING: Final = 64
"""Tokens of the prompt that decide: more than a chat template's own, less than most shared system
prompts."""
_LOAD_FACTOR: Final = 1.25


def placement_key(request: OpenRequest) -> bytes:
    """Equal for sessions that can use what the other computed, most likely: those of one tenant
    with the same beginning."""
    beginning = np.asarray(request.prompt_ids[:_BEGINNING], dtype="<u8").tobytes()
    return blake2b(request.tenant.encode() + b"\0" + beginning, digest_size=16).digest()


def rank(key: bytes, occupancies: Mapping[str, tuple[int, int]]) -> Sequence[str]:
    """All servers, in the order in which a session is to be offered to them.

    Args:
        key: see `placement_key`.
        occupancies: of each server, by name: sessions held, and sessions that fit.
    """
    held = sum(held for held, _ in occupancies.values())
    fits = sum(fits for _, fits in occupancies.values())

    def overloaded(name: str) -> bool:
        own, room = occupancies[name]
        return own >= min(math.ceil(_LOAD_FACTOR * (held + 1) * room / max(fits, 1)), room)

    def weight(name: str) -> bytes:
        return blake2b(name.encode(), key=key, digest_size=8).digest()

    return sorted(occupancies, key=lambda name: (overloaded(name), weight(name)))
