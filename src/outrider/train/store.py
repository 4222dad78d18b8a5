"""Answers of a target in Parquet: what a draft is trained on and judged by.

A folder holds shards, `part-00000.parquet` onwards; each is written whole under another name and
then renamed, so a shard that is there is complete. One row is one conversation. `docs/train.md`
describes the columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from outrider.errors import CorruptData, TrainingError
from outrider.train.columns import INDEX_COLUMNS, SCHEMA, from_table, to_table
from outrider.train.records import Entry, Example, Part, Sampling, Source

__all__ = [
    "Entry",
    "Example",
    "Examples",
    "Part",
    "Sampling",
    "ShardWriter",
    "Source",
    "read_examples",
    "read_source",
    "shards",
]

_METADATA_KEY: Final = b"outrider"
_SHARD_NAME: Final = re.compile(r"part-(\d{5,})\.parquet")
_SHARDS_IN_MEMORY: Final = 4
_COMPRESSION_LEVEL: Final = 9


class ShardWriter:
    """Writes the shards of one folder, which is made if need be."""

    def __init__(self, folder: Path, source: Source) -> None:
        self._folder = folder
        self._metadata = {_METADATA_KEY: source.to_json().encode()}

    def write(self, index: int, examples: Iterable[Example]) -> Path:
        """Write shard `index` whole, or leave nothing under its name.

        Raises:
            TrainingError: the folder cannot be written, or its disk is full.
        """
        sink = pa.BufferOutputStream()
        table = to_table(list(examples), self._metadata)
        pq.write_table(table, sink, compression="zstd", compression_level=_COMPRESSION_LEVEL)
        path = self._folder / f"part-{index:05d}.parquet"
        unfinished = path.with_suffix(".unfinished")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(sink.getvalue())
            unfinished.replace(path)
        except OSError as error:
            raise TrainingError(
                f"cannot write {path}: {error.strerror or error}; remedy that, then start again "
                "with the same command: whole shards are kept"
            ) from error
        return path


class Examples(Sequence[Example]):
    """The examples of one folder, read shard by shard as they are asked for.

    Going through them in order reads each shard once; a few shards are kept in memory.

    Attributes:
        source: where they come from.
        entries: one per example, in the same order, known without reading it.
        num_tokens: int64 [len(self)], of the entries.
        num_generated: int64 [len(self)], of the entries.
        nbytes: size of all files.
    """

    def __init__(self, folder: Path, part: Part = Part.ALL) -> None:
        self.source = read_source(folder)
        self.entries: list[Entry] = []
        self._paths = list(shards(folder).values())
        self._loaded: dict[int, list[Example]] = {}
        self._places: list[tuple[int, int]] = []
        for shard, path in enumerate(self._paths):
            if _source(path) != self.source:
                raise CorruptData(
                    f"{path} comes from another target or other settings than {self._paths[0]}; "
                    "keep what different runs made in different folders"
                )
            for row, fields in enumerate(_read(path, INDEX_COLUMNS).to_pylist()):
                entry = Entry(**fields | {"finish_reasons": tuple(fields["finish_reasons"])})
                if part is Part.ALL or entry.held_out is (part is Part.HELD_OUT):
                    self._places.append((shard, row))
                    self.entries.append(entry)
        counts = [(entry.num_tokens, entry.num_generated) for entry in self.entries]
        table = np.asarray(counts, dtype=np.int64).reshape(-1, 2)
        self.num_tokens, self.num_generated = table[:, 0], table[:, 1]
        self.nbytes = sum(path.stat().st_size for path in self._paths)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...

    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        """Raises CorruptData where the shard cannot be read or is not of its form."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        shard, row = self._places[index]
        return self._shard(shard)[row]

    def _shard(self, shard: int) -> list[Example]:
        if (examples := self._loaded.pop(shard, None)) is None:
            path = self._paths[shard]
            try:
                examples = from_table(_read(path, SCHEMA.names), self.source)
            except ValueError as error:
                raise CorruptData(f"{path} is not what it claims: {error}; {_REMEDY}") from error
        self._loaded[shard] = examples  # the latest used is the last to leave
        while len(self._loaded) > _SHARDS_IN_MEMORY:
            del self._loaded[next(iter(self._loaded))]
        return examples


_REMEDY: Final = "remove the file and run `outrider train data` again to make it anew"


def read_examples(folder: Path, part: Part = Part.ALL) -> Examples:
    """The examples of `folder`, of one part or of all, in the order of the prompts.

    Raises:
        TrainingError: the folder holds no shards.
        CorruptData: a shard cannot be read, or is of another source than the first.
    """
    return Examples(folder, part)


def read_source(folder: Path) -> Source:
    """Where the examples of `folder` come from. Raises as `read_examples` does."""
    for path in shards(folder).values():
        return _source(path)
    raise TrainingError(f"{folder} holds no training data; make some with `outrider train data`")


def shards(folder: Path) -> dict[int, Path]:
    """The whole shards of a folder by index, ascending; none if the folder is not there."""
    found = {}
    for path in folder.glob("part-*.parquet"):
        if match := _SHARD_NAME.fullmatch(path.name):
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def _source(path: Path) -> Source:
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error
    if (text := metadata.get(_METADATA_KEY)) is None:
        raise CorruptData(f"{path} is no file of `outrider train data`; move it out of the folder")
    try:
        return Source.from_json(text)
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptData(f"{path} does not say where it comes from: {error}; {_REMEDY}") from error


def _read(path: Path, columns: Sequence[str]) -> Any:
    try:
        table = pq.ParquetFile(path).read(columns=list(columns))
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error
    if missing := set(columns) - set(table.column_names):
        raise CorruptData(f"{path} lacks the columns {sorted(missing)}; {_REMEDY}")
    for name in columns:
        if table.schema.field(name).type != SCHEMA.field(name).type:
            raise CorruptData(f"column {name} of {path} is of another type; {_REMEDY}")
    return table


def _unreadable(path: Path, error: Exception) -> CorruptData:
    words = " ".join(str(error).split())
    return CorruptData(f"cannot read {path}: {words}; {_REMEDY}")
