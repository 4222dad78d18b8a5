"""Models as JSON tables of logits by context: small enough to enumerate, served like any other.

    {"vocab_size": 3, "order": 2, "eos": [2],
     "logits": {"": [0, 0, 0], "1": [0.5, 1, -2], "0,1": [2, 0, null]}}

A key holds the last token ids, up to `order` of them, joined with commas; the longest key that
fits wins, and "" is the row for all other contexts. `null` excludes a token. The text of such a
model is its token ids, separated by spaces.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from outrider.errors import CorruptModel, UnknownModel

__all__ = ["TableModel"]

_ID = re.compile("[1-9][0-9]{0,6}")


class _TableFile(msgspec.Struct, forbid_unknown_fields=True):
    vocab_size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    order: Annotated[int, msgspec.Meta(ge=0, le=64)]
    logits: dict[str, list[float | None]]
    eos: list[int] = []
    context_length: Annotated[int, msgspec.Meta(ge=2)] = 4096


class TableModel:
    """A table of logits. `TableModel.load` reads one from a file.

    Attributes:
        vocab_size: length of every row.
        order: tokens that a row may depend on.
        vocab_fingerprint: equal for tables whose ids mean the same.
        eos_token_ids: ids that end an output.
        context_length: prompt and output together, in tokens.
        model_hash: identifies the content.
    """

    def __init__(
        self,
        rows: dict[tuple[int, ...], npt.NDArray[np.float64]],
        *,
        eos_token_ids: frozenset[int],
        context_length: int,
        model_hash: str,
    ) -> None:
        self._rows = rows
        self.order = max(len(context) for context in rows)
        self.vocab_size = rows[()].size
        self.eos_token_ids = eos_token_ids
        self.vocab_fingerprint = f"ids:{self.vocab_size}"
        self.context_length = context_length
        self.model_hash = model_hash

    @classmethod
    def load(cls, file: Path) -> TableModel:
        """Read a table.

        Raises:
            UnknownModel: there is no such file.
            CorruptModel: it is not a table; the message says where.
        """
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UnknownModel(f"cannot read table {file}: {error.strerror}") from None
        try:
            table = msgspec.json.decode(content, type=_TableFile)
        except msgspec.DecodeError as error:
            raise CorruptModel(f"{file} is not a table of logits: {error}") from None
        rows = {_context(file, key, table): _row(file, key, table) for key in table.logits}
        if () not in rows:
            raise CorruptModel(f'{file} has no default row; add the key "" to its logits')
        for token_id in table.eos:
            if not 0 <= token_id < table.vocab_size:
                raise CorruptModel(
                    f"{file} has eos {token_id}; ids lie in 0..{table.vocab_size - 1}"
                )
        return cls(
            rows,
            eos_token_ids=frozenset(table.eos),
            context_length=table.context_length,
            model_hash=hashlib.sha256(content).hexdigest(),
        )

    def logits(self, tokens: Sequence[int], length: int) -> npt.NDArray[np.float64]:
        """The row behind the first `length` of `tokens`, float64 of shape [V]; read only."""
        context = tuple(tokens[max(length - self.order, 0) : length])
        while context not in self._rows:
            context = context[1:]
        return self._rows[context]


def _context(file: Path, key: str, table: _TableFile) -> tuple[int, ...]:
    parts = key.split(",") if key else []
    if any(part != "0" and not _ID.fullmatch(part) for part in parts):
        raise CorruptModel(f"{file} has the key {key!r}; use token ids joined with commas")
    context = tuple(int(part) for part in parts)
    if len(context) > table.order:
        raise CorruptModel(f"{file} has the key {key!r}, longer than its order {table.order}")
    if any(not 0 <= token_id < table.vocab_size for token_id in context):
        raise CorruptModel(f"{file} has the key {key!r}; ids lie in 0..{table.vocab_size - 1}")
    return context


def _row(file: Path, key: str, table: _TableFile) -> npt.NDArray[np.float64]:
    values = table.logits[key]
    if len(values) != table.vocab_size:
        raise CorruptModel(
            f"{file} has {len(values)} logits under {key!r}; its vocab_size is {table.vocab_size}"
        )
    row = np.array([-np.inf if value is None else value for value in values])
    if not np.isfinite(row.max()):
        raise CorruptModel(f"{file} excludes every token under {key!r}; leave at least one")
    row.flags.writeable = False
    return row
