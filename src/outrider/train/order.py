"""Which conversations go through a draft together, and in which order.

Everything follows from the seed, and is known before the run begins: whoever goes on with a run
goes on at the next part.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["epoch_parts", "schedule"]

I64 = npt.NDArray[np.int64]

_BLOCK: Final = 64
_BLOCKS_AT_ONCE: Final = 64


def schedule(
    lengths: I64, useful: I64, *, epochs: float, part_tokens: int, parts_per_step: int, seed: int
) -> list[I64]:
    """The parts of a whole run, one after the other: indices of conversations.

    Their number is that of whole steps: the last step is filled up from one epoch more.

    Args:
        lengths: int64 [n], tokens of each conversation.
        useful: int64 [m], the indices that are taken.
        epochs: times that the data is gone through.
        part_tokens: positions in a part, padding counted; a single conversation may have more.
        parts_per_step: parts in an optimizer step.
        seed: fixes the order.
    """
    per_epoch = sum(1 for _ in epoch_parts(lengths, useful, part_tokens, seed, 0))
    steps = max(round(epochs * per_epoch / parts_per_step), 1)
    parts = (
        part for epoch in count() for part in epoch_parts(lengths, useful, part_tokens, seed, epoch)
    )
    return list(islice(parts, steps * parts_per_step))


def epoch_parts(
    lengths: I64, useful: I64, part_tokens: int, seed: int, epoch: int
) -> Iterator[I64]:
    """The parts of one epoch: every conversation once, beside others of about its length.

    Conversations that are stored together stay near each other, so that of a store larger than
    memory each piece is read once.
    """
    draw = np.random.default_rng((seed, epoch))
    blocks = np.array_split(useful, max(-(-len(useful) // _BLOCK), 1))
    draw.shuffle(blocks)
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        chosen = np.concatenate(blocks[start : start + _BLOCKS_AT_ONCE])
        # Lengths are blurred, or the same conversations would meet in every epoch.
        blurred = lengths[chosen] * draw.uniform(0.85, 1.15, len(chosen))
        parts = list(_cut(chosen[np.argsort(blurred)], lengths, part_tokens))
        for place in draw.permutation(len(parts)):
            yield parts[place]


def _cut(ordered: I64, lengths: I64, part_tokens: int) -> Iterator[I64]:
    start, longest = 0, 0
    for end, index in enumerate(ordered):
        grown = max(longest, int(lengths[index]))
        if end > start and grown * (end - start + 1) > part_tokens:
            yield ordered[start:end]
            start, grown = end, int(lengths[index])
        longest = grown
    yield ordered[start:]
