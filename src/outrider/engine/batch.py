"""Ragged batches: sequences of different lengths, each with some new tokens, in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.engine.cache import KVCache
from outrider.errors import RequestError

__all__ = ["Batch", "Chunk", "Span", "pack"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Append `token_ids` to `slot`, and return logits for the last `num_logits` of them.

    There is at least one token; `num_logits` may be 0.
    """

    slot: int
    token_ids: Sequence[int]
    num_logits: int


@dataclass(frozen=True, slots=True)
class Span:
    """One chunk, packed: rows [row, row + count), positions [start, start + count)."""

    slot: int
    row: int
    start: int
    count: int

    @property
    def end(self) -> int:
        """Length of the sequence after the step."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class Batch:
    """The chunks of one step, packed.

    Attributes:
        spans: one per chunk, in order.
        token_ids: [N].
        positions: [N], of each token within its own sequence.
        wanted: the rows whose logits are wanted, [W]; None if they are all N.
        counts: how many of the wanted rows belong to each chunk; they sum to W.
    """

    spans: tuple[Span, ...]
    token_ids: Tensor
    positions: Tensor
    wanted: Tensor | None
    counts: tuple[int, ...]

    @property
    def end(self) -> int:
        """One more than the largest position."""
        return max(span.end for span in self.spans)


def pack(
    chunks: Sequence[Chunk], cache: KVCache, *, vocab_size: int, device: torch.device
) -> Batch:
    """Check the chunks against the cache and pack them. Changes nothing.

    Raises:
        ValueError: no chunks, two for the same slot, one without tokens, or one that wants the
            logits of more tokens than it has.
        RequestError: a token id outside the vocabulary.
        ContextLengthExceeded: a sequence would grow too long.
        RuntimeError: a slot that is not allocated.
    """
    if len({chunk.slot for chunk in chunks}) != len(chunks) or not chunks:
        raise ValueError(
            f"a step takes at least one chunk and one per slot, not {[c.slot for c in chunks]}"
        )
    ids: list[int] = []
    positions: list[int] = []
    wanted: list[int] = []
    spans: list[Span] = []
    for chunk in chunks:
        _check(chunk, vocab_size)
        start = cache.length(chunk.slot)
        span = Span(chunk.slot, len(ids), start, len(chunk.token_ids))
        cache.check_fits(chunk.slot, span.end)
        ids.extend(chunk.token_ids)
        positions.extend(range(start, span.end))
        wanted.extend(range(len(ids) - chunk.num_logits, len(ids)))
        spans.append(span)
    numbers = torch.tensor((ids, positions), dtype=torch.int64).to(device)  # [2, N]
    return Batch(
        spans=tuple(spans),
        token_ids=numbers[0],
        positions=numbers[1],
        wanted=None if len(wanted) == len(ids) else torch.tensor(wanted, device=device).long(),
        counts=tuple(chunk.num_logits for chunk in chunks),
    )


def _check(chunk: Chunk, vocab_size: int) -> None:
    ids = chunk.token_ids
    if len(ids) == 0 or not 0 <= chunk.num_logits <= len(ids):
        raise ValueError(
            f"slot {chunk.slot}: {chunk.num_logits} logits of {len(ids)} tokens; a chunk has at"
            " least one token and wants the logits of at most all of them"
        )
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocab_size:
        raise RequestError(
            f"token id {low if low < 0 else high} is outside the model's vocabulary;"
            f" ids lie between 0 and {vocab_size - 1}",
            code="invalid_token_id",
        )
