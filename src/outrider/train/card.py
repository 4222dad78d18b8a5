"""What is known of a draft, kept beside its weights: a record for programs, a card for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from outrider.errors import CorruptModel
from outrider.train.card_measures import measures_tables
from outrider.train.store import Examples

__all__ = ["RECORD", "Data", "Record", "describe_data", "read_record", "write_card"]

RECORD: Final = "outrider_draft.json"
"""Name of the record's file."""

_CARD: Final = "README.md"
_VERSION: Final = 1
_TAGS: Final = ("speculative-decoding", "draft-model", "outrider")


@dataclass(frozen=True, slots=True)
class Data:
    """One folder of data that a draft was trained on.

    Attributes:
        prompts: hash of the prompts asked; see `Source`.
        categories: kinds of prompts, which are named after their files unless they say otherwise.
        answers, tokens: trained on: conversations, and tokens that the target made in them.
        held_out: conversations kept apart.
        temperatures: that the answers were drawn at.
        sampling: how else they were drawn.
    """

    prompts: str
    categories: tuple[str, ...]
    answers: int
    tokens: int
    held_out: int
    temperatures: tuple[float, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a draft.

    Attributes:
        name: of the draft.
        target_id, target_hash, target_dtype: which model it drafts for, as in `types.TargetInfo`.
        vocab_fingerprint: of the target's tokenizer.
        vocab_size, target_vocab_size: ids of the draft and of the target's rows.
        parameters: how many numbers it has; a tied head counts once.
        dtype: that they are kept in.
        trimmed: whether its ids are its own.
        prompt_files: names of the files that the prompts are from, as far as told.
        data: what it was trained on, as far as told.
        recipe: settings by name.
        measures: what `outrider train evaluate` wrote, checked by `check_measures`; or nothing.
        licence: an SPDX identifier, or None.
        base_models: what it was made from, by id.
    """

    name: str
    target_id: str
    target_hash: str
    vocab_fingerprint: str
    vocab_size: int
    target_vocab_size: int
    parameters: int
    dtype: str
    target_dtype: str | None = None
    trimmed: bool = False
    prompt_files: tuple[str, ...] = ()
    data: tuple[Data, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    measures: Mapping[str, Any] = field(default_factory=dict)
    licence: str | None = None
    base_models: tuple[str, ...] = ()


def describe_data(examples: Examples) -> Data:
    """What a folder of data holds, both of its parts; known without reading its tokens."""
    source, entries = examples.source, examples.entries
    trained = [each for each in entries if not each.held_out]
    sampling = asdict(source.sampling)
    temperatures = tuple(sampling.pop("temperatures"))
    return Data(
        prompts=source.prompts,
        categories=tuple(sorted({each.category for each in trained})),
        answers=len(trained),
        tokens=sum(each.num_generated for each in trained),
        held_out=len(entries) - len(trained),
        temperatures=temperatures,
        sampling=sampling,
    )


def write_card(folder: Path, record: Record) -> None:
    """Write `README.md` and `outrider_draft.json`. Raises OSError."""
    text = json.dumps({"version": _VERSION, **asdict(record)}, indent=2, ensure_ascii=False)
    (folder / RECORD).write_text(text + "\n", encoding="utf-8")
    (folder / _CARD).write_text("\n".join(_card(record)) + "\n", encoding="utf-8")


def read_record(folder: Path) -> Record | None:
    """The record of the draft in `folder`; None if it has none.

    Raises:
        CorruptModel: it is there, but cannot be read.
    """
    path = folder / RECORD
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if (version := values.pop("version")) != _VERSION:
            raise ValueError(f"version {version} is not {_VERSION}")
        for name in ("prompt_files", "base_models"):
            values[name] = tuple(values[name])
        values["data"] = tuple(_data(each) for each in values["data"])
        return Record(**values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptModel(f"{path} cannot be read ({error}); export the draft again") from error


def _data(values: dict[str, Any]) -> Data:
    lists = {name: tuple(values[name]) for name in ("categories", "temperatures")}
    return Data(**values | lists)


def _card(record: Record) -> Iterator[str]:
    yield from _front_matter(record)
    yield f"# {_line(record.name)}"
    yield ""
    yield (
        f"A draft model for speculative decoding, for the target `{_line(record.target_id)}`. It "
        "proposes tokens, which the target verifies: the output is the target's own, and only how "
        "fast it comes depends on the draft."
    )
    yield ""
    yield f"    outrider run --target {_line(record.target_id)} --draft {_line(record.name)}"
    yield from _section("Model", _model(record))
    yield from _section("Data", _all_data(record))
    yield from _section("Recipe", record.recipe.items())
    yield from _measures(record)
    yield from _limits(record)


def _front_matter(record: Record) -> Iterator[str]:
    yield "---"
    if record.licence is not None:
        yield f"license: {_quoted(record.licence.lower())}"
    if record.base_models:
        yield "base_model:"
        yield from (f"- {_quoted(each)}" for each in record.base_models)
    # transformers reads the weights, but knows nothing of ids that are the draft's own.
    yield f"library_name: {'outrider' if record.trimmed else 'transformers'}"
    yield "pipeline_tag: text-generation"
    yield "tags:"
    yield from (f"- {each}" for each in _TAGS)
    yield "---"
    yield ""


def _model(record: Record) -> Iterator[tuple[str, object]]:
    dtype = "" if record.target_dtype is None else f", served in {record.target_dtype}"
    yield "target", f"`{record.target_id}`{dtype}"
    yield "hash of the target", f"`{record.target_hash}`"
    yield "parameters", f"{record.parameters:,}"
    yield "weights", record.dtype
    of = f" of the target's {record.target_vocab_size:,}" if record.trimmed else ""
    yield "vocabulary", f"{record.vocab_size:,} tokens{of}"


def _all_data(record: Record) -> Iterator[tuple[str, object]]:
    if record.prompt_files:
        yield "prompt files", ", ".join(record.prompt_files)
    for place, data in enumerate(record.data, 1):
        ahead = f"{place}. " if len(record.data) > 1 else ""
        yield f"{ahead}kinds of prompts", ", ".join(data.categories)
        yield f"{ahead}answers of the target", f"{data.answers:,} ({data.held_out:,} held out)"
        yield f"{ahead}tokens of the target", f"{data.tokens:,}"
        yield f"{ahead}temperatures", ", ".join(f"{each:g}" for each in data.temperatures)
        yield f"{ahead}sampling", ", ".join(f"{k} {v}" for k, v in data.sampling.items())


def _measures(record: Record) -> Iterator[str]:
    yield from ("", "## Measures", "")
    if record.measures:
        yield from measures_tables(record.measures)
    else:
        yield "None were given: judge it before you serve it."


def _limits(record: Record) -> Iterator[str]:
    yield from ("", "## Limits", "")
    yield (
        "It was made to say what this target says, in this quantization, on this kind of prompts. "
        "In front of another target, or on other prompts, fewer of its tokens are accepted; that "
        "costs time, never correctness. It is no model to talk to."
    )
    if record.trimmed:
        yield ""
        yield (
            f"Its ids are its own. `draft_vocabulary.safetensors` leads from them to the target's; "
            f"the tokenizer is the target's. Tokens beyond its {record.vocab_size:,} are never "
            "drafted, and are read as the bytes that they stand for."
        )


def _section(title: str, rows: Iterable[tuple[str, object]]) -> Iterator[str]:
    found = list(rows)
    if not found:
        return
    yield from ("", f"## {title}", "", "| | |", "|---|---|")
    for name, value in found:
        yield f"| {_cell(name)} | {_cell(value)} |"


def _cell(value: object) -> str:
    return _line(value).replace("|", "\\|")


def _line(value: object) -> str:
    return " ".join(str(value).split())


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # which YAML reads alike
