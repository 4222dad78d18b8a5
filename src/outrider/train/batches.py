"""From stored conversations to what a draft is trained on, in the draft's own ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.drafters.translation import Translation
from outrider.errors import TrainingError
from outrider.train.rows import TeacherRows, draft_ids_of, example_rows
from outrider.train.store import Example, Examples, Source

__all__ = ["Batch", "Corpus", "Item", "Reader", "batch_rows", "collate"]

Batch = dict[str, Tensor]
"""B conversations as tensors; `collate` says which."""

I32 = npt.NDArray[np.int32]

_BLOCK: Final = 64
_BLOCKS_IN_MEMORY: Final = 128


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One conversation: n tokens that the draft reads, g tokens of the target that it predicts.

    Attributes:
        input_ids: int32 [n], the draft's.
        positions: int32 [g], ascending: the position whose output predicts each of the g tokens.
        labels: int32 [g], the draft's ids of these tokens, -1 where it has none.
        rows: g rows of the target, in the draft's ids.
        target_tokens: int32 [m], the conversation in the target's ids.
        target_positions: int32 [g], where in it the predicted tokens stand.
        temperature: that the answers were drawn at.
    """

    input_ids: I32
    positions: I32
    labels: I32
    rows: TeacherRows
    target_tokens: I32
    target_positions: I32
    temperature: float


class Reader:
    """Translates conversations for one draft."""

    def __init__(
        self,
        translation: Translation | None,
        *,
        vocab_size: int,
        draft_size: int,
        temperature: float,
        max_length: int,
    ) -> None:
        """Args:
        translation: between the target's ids and the draft's; None if they are the same.
        vocab_size: length of the target's rows.
        draft_size: length of the draft's rows.
        temperature: that the teacher's rows are wanted at.
        max_length: tokens of the draft that are kept of a conversation.
        """
        self._translation = translation
        self._temperature, self._max_length = temperature, max_length
        same = np.arange(min(vocab_size, draft_size), dtype=np.int64)
        target_ids = same if translation is None else translation.target_ids
        self._draft_ids = draft_ids_of(torch.from_numpy(target_ids), vocab_size)

    def read(self, example: Example, source: Source) -> Item:
        """The conversation as this draft sees it.

        Raises:
            TrainingError: the data has no rows at the temperature wanted.
        """
        input_ids, ends = self._pieces(example.token_ids)
        made = np.flatnonzero(example.generated)
        positions = ends[made - 1] - 1
        # A context that the draft reads nothing of predicts nothing.
        kept = (positions >= 0) & (positions < self._max_length)
        rows = example_rows(example, source, self._temperature).translated(self._draft_ids)
        if not kept.all():
            chosen = torch.from_numpy(kept)
            rows = TeacherRows(
                rows.support_ids[chosen], rows.log_probs[chosen], rows.log_tail[chosen]
            )
        made, positions = made[kept], positions[kept]
        length = int(positions[-1]) + 1 if positions.size else 1
        labels = self._draft_ids.numpy()[example.token_ids[made]]
        return Item(
            input_ids=input_ids[:length],
            positions=positions.astype(np.int32),
            labels=labels.astype(np.int32),
            rows=TeacherRows(rows.support_ids.int(), rows.log_probs, rows.log_tail),
            target_tokens=example.token_ids[: int(made[-1]) + 1 if made.size else 1],
            target_positions=made.astype(np.int32),
            temperature=example.temperature,
        )

    def _pieces(self, token_ids: I32) -> tuple[I32, npt.NDArray[np.int64]]:
        """The draft's ids, and how many there are up to the end of each token of the target."""
        if self._translation is None:
            return token_ids, np.arange(1, len(token_ids) + 1)
        pieces, ends = self._translation.align(token_ids.tolist())
        prefix = self._translation.prefix
        ahead = 0 if tuple(pieces[: len(prefix)]) == prefix else len(prefix)
        read = [*prefix, *pieces] if ahead else pieces
        return np.asarray(read, dtype=np.int32), np.asarray(ends, dtype=np.int64) + ahead


class Corpus(Sequence[Item]):
    """The conversations of one or more folders; those used lately are kept in memory.

    Attributes:
        lengths: int64 [len(self)], tokens of each, in the target's ids, cut to the longest allowed:
            known before anything is read, and close to the draft's.
        predicted: how many tokens of the target there are to predict.
    """

    def __init__(self, folders: Sequence[Examples], reader: Reader, max_length: int) -> None:
        """Raises TrainingError where there is nothing to predict."""
        self._folders = [each for each in folders if len(each)]
        self._reader = reader
        self._starts = np.cumsum([0, *(len(each) for each in self._folders)])
        self._blocks: dict[int, list[Item]] = {}
        counts = [each.num_generated for each in self._folders]
        self.predicted = sum(int(each.sum()) for each in counts)
        if not self.predicted:
            raise TrainingError(
                "the data holds no token that the target made and a draft may be trained on; make "
                "some with `outrider train data`, with a --holdout below 1"
            )
        lengths = np.concatenate([each.num_tokens for each in self._folders])
        self.lengths = np.minimum(lengths, max_length)
        self.useful = np.flatnonzero(np.concatenate(counts) > 0)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._block(index // _BLOCK)[index % _BLOCK]

    def _block(self, block: int) -> list[Item]:
        if (items := self._blocks.pop(block, None)) is None:
            last = min((block + 1) * _BLOCK, len(self))
            items = [self._read(index) for index in range(block * _BLOCK, last)]
        self._blocks[block] = items  # the latest used is the last to leave
        while len(self._blocks) > _BLOCKS_IN_MEMORY:
            del self._blocks[next(iter(self._blocks))]
        return items

    def _read(self, index: int) -> Item:
        folder = int(np.searchsorted(self._starts, index, side="right")) - 1
        examples = self._folders[folder]
        return self._reader.read(examples[index - int(self._starts[folder])], examples.source)


def collate(items: Sequence[Item], *, live: bool = False) -> Batch:
    """One batch of B conversations that predict N tokens in all.

    Padding stands behind each conversation, where a causal model's earlier outputs cannot see it.

    Args:
        live: with the target's own tokens.

    Returns:
        `input_ids` int64 [B, L]; `places` int64 [N], of the predicting outputs in the flattened
        [B * L]; `labels` int64 [N]; `support_ids`, `log_probs`, `log_tail` as in `TeacherRows`;
        and for a live teacher `target_tokens` [B, M] and `target_places` [N], likewise.
    """
    input_ids, starts = _padded([each.input_ids for each in items])
    rows = TeacherRows.cat([each.rows for each in items])
    batch = {
        "input_ids": input_ids,
        "places": _places(starts, [each.positions for each in items]),
        "labels": _long(np.concatenate([each.labels for each in items])),
        "support_ids": rows.support_ids.long(),
        "log_probs": rows.log_probs,
        "log_tail": rows.log_tail,
    }
    if live:
        target_tokens, starts = _padded([each.target_tokens for each in items])
        before = [each.target_positions - 1 for each in items]
        batch |= {"target_tokens": target_tokens, "target_places": _places(starts, before)}
    return batch


def batch_rows(batch: Batch) -> TeacherRows:
    """The target's rows of a batch."""
    return TeacherRows(batch["support_ids"], batch["log_probs"], batch["log_tail"])


def _padded(sequences: Sequence[I32]) -> tuple[Tensor, list[int]]:
    longest = max(len(each) for each in sequences)
    padded = np.zeros((len(sequences), longest), dtype=np.int64)
    for row, each in zip(padded, sequences, strict=True):
        row[: len(each)] = each
    return torch.from_numpy(padded), [row * longest for row in range(len(sequences))]


def _places(starts: Sequence[int], positions: Sequence[I32]) -> Tensor:
    found = [start + each for start, each in zip(starts, positions, strict=True)]
    return _long(np.concatenate(found))


def _long(values: npt.NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))
