"""Examples as columns of Parquet, and back.

A row's logits are kept as the largest one in float32 and the others' distances below it in float16,
whose steps are finest where the probability is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from outrider.train.records import Entry, Example, Source

__all__ = ["INDEX_COLUMNS", "SCHEMA", "from_table", "to_table"]

SCHEMA: Final = pa.schema(
    [
        ("id", pa.string()),
        ("category", pa.string()),
        ("temperature", pa.float64()),
        ("held_out", pa.bool_()),
        ("finish_reasons", pa.list_(pa.string())),
        ("num_tokens", pa.int32()),
        ("num_generated", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("generated", pa.list_(pa.bool_())),
        ("support_ids", pa.list_(pa.int32())),
        ("top_logits", pa.list_(pa.float32())),
        ("support_gaps", pa.list_(pa.float16())),
        ("logsumexps", pa.list_(pa.float32())),
    ]
)
INDEX_COLUMNS: Final = tuple(each.name for each in fields(Entry))
"""What is known of an example before it is read."""

_FARTHEST: Final = 60000.0
"""Gaps are cut here: float16 has no more, and no token so far behind is ever drawn."""

_LISTS: Final[dict[str, type[np.generic]]] = {
    "token_ids": np.int32,
    "generated": np.bool_,
    "support_ids": np.int32,
    "top_logits": np.float32,
    "support_gaps": np.float16,
    "logsumexps": np.float32,
}


def to_table(examples: Sequence[Example], metadata: dict[bytes, bytes]) -> pa.Table:
    """One row per example, of `SCHEMA`."""
    schema = SCHEMA.with_metadata(metadata)
    columns: list[Any] = []
    for field in schema:
        if (dtype := _LISTS.get(field.name)) is None:
            columns.append(pa.array([_SCALARS[field.name](each) for each in examples], field.type))
        else:
            columns.append(_list_column([_flat(each, field.name) for each in examples], dtype))
    return pa.Table.from_arrays(columns, schema=schema)


def from_table(table: pa.Table, source: Source) -> list[Example]:
    """The examples of a table of `SCHEMA`.

    Raises:
        ValueError: a row is not of the form that `source` claims; it says which row, and why.
    """
    scalars = {name: table[name].to_pylist() for name in _SCALARS}
    lists = {name: _rows_of(table[name].combine_chunks(), dtype) for name, dtype in _LISTS.items()}
    examples = []
    for row in range(table.num_rows):
        fields = {name: values[row] for name, values in scalars.items()}
        fields |= {name: values[row] for name, values in lists.items()}
        try:
            examples.append(_example(fields, source))
        except ValueError as error:
            raise ValueError(f"row {row} (id {fields['id']}): {error}") from error
    return examples


_SCALARS: Final[dict[str, Callable[[Example], object]]] = {
    "id": lambda example: example.id,
    "category": lambda example: example.category,
    "temperature": lambda example: example.temperature,
    "held_out": lambda example: example.held_out,
    "finish_reasons": lambda example: list(example.finish_reasons),
    "num_tokens": lambda example: len(example.token_ids),
    "num_generated": lambda example: int(example.generated.sum()),
}


def _flat(example: Example, name: str) -> npt.NDArray[Any]:
    logits = example.support_logits
    match name:
        case "top_logits":
            return logits[:, 0]
        case "support_gaps":
            gaps: npt.NDArray[np.float32] = np.minimum(logits[:, :1] - logits, _FARTHEST)
            return gaps.astype(np.float16).ravel()
    values: npt.NDArray[Any] = getattr(example, name)
    return values.ravel()


def _list_column(values: list[npt.NDArray[Any]], dtype: type[np.generic]) -> pa.Array:
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum([len(each) for each in values], out=offsets[1:])
    flat = np.concatenate(values) if values else np.empty(0)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat.astype(dtype, copy=False)))


def _rows_of(column: pa.Array, dtype: type[np.generic]) -> list[npt.NDArray[Any]]:
    # A copy: torch takes no arrays that are read only.
    flat = column.flatten().to_numpy(zero_copy_only=False).astype(dtype)
    ends = np.cumsum(column.value_lengths().to_numpy(zero_copy_only=False))
    return np.split(flat, ends[:-1]) if len(ends) else []


def _example(fields: dict[str, Any], source: Source) -> Example:
    token_ids, generated = fields["token_ids"], fields["generated"]
    if len(token_ids) != len(generated):
        raise ValueError(f"{len(token_ids)} tokens but {len(generated)} marks of who made them")
    if not len(token_ids) or generated[0]:
        raise ValueError("the first token is missing, or marked as generated")
    rows, k = int(generated.sum()), source.k
    for name, width in {
        "support_ids": k,
        "top_logits": 1,
        "support_gaps": k,
        "logsumexps": len(source.temperatures),
    }.items():
        if len(fields[name]) != rows * width:
            raise ValueError(f"{name} has {len(fields[name])} values where {rows * width} belong")
    support_ids = fields["support_ids"].reshape(rows, k)
    for ids in (token_ids, support_ids):
        if ids.size and not (ids.min() >= 0 and ids.max() < source.vocab_size):
            raise ValueError(f"token ids outside the vocabulary of {source.vocab_size}")
    logits = fields["top_logits"][:, None] - fields["support_gaps"].reshape(rows, k)
    logsumexps = fields["logsumexps"].reshape(rows, len(source.temperatures))
    if not (np.isfinite(logits).all() and np.isfinite(logsumexps).all()):
        raise ValueError("logits that are not finite")
    return Example(
        id=fields["id"],
        category=fields["category"],
        token_ids=token_ids,
        generated=generated,
        support_ids=support_ids,
        support_logits=logits.astype(np.float32, copy=False),
        logsumexps=logsumexps,
        temperature=fields["temperature"],
        held_out=fields["held_out"],
        finish_reasons=tuple(fields["finish_reasons"]),
    )
