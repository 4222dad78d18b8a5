"""Acceptance traces: at every position of an output, how far a draft from there would have held."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError

__all__ = ["Trace", "concatenate", "load_traces"]

_MAX_LINE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Trace:
    """One output.

    Attributes:
        id: names it.
        accepted: per position, drafted tokens that hold from there on, if many are drafted.
        drafted: per position, tokens that the drafter has to say, if many are asked for; None if
            it always says as many as it is asked for.
        prompt_tokens: before the output.
    """

    id: str
    accepted: tuple[int, ...]
    drafted: tuple[int, ...] | None = None
    prompt_tokens: int = 0

    def __len__(self) -> int:
        return len(self.accepted)

    def draft(self, position: int, asked: int) -> tuple[int, int]:
        """Tokens drafted and tokens accepted at `position`."""
        drafted = asked if self.drafted is None else min(asked, self.drafted[position])
        return drafted, min(drafted, self.accepted[position])

    def cut(self, tokens: int) -> Trace:
        """Its first tokens."""
        drafted = None if self.drafted is None else self.drafted[:tokens]
        return Trace(self.id, self.accepted[:tokens], drafted, self.prompt_tokens)


def load_traces(file: Path, *, field: str | None = None) -> list[Trace]:
    """Read a JSONL file of traces; the format is told in docs/simulate.md.

    Args:
        file: a trace a line.
        field: take this list instead, whose numbers count one token more than was accepted.

    Raises:
        ConfigError: a line is no trace; its number is in the message.
    """
    traces = []
    try:
        with file.open(encoding="utf-8") as lines:
            number = 0
            while line := lines.readline(_MAX_LINE):
                number += 1
                if line.strip():
                    traces.append(_parse(line, field, where=f"{file}, line {number}"))
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is no text; give JSONL files of traces") from None
    if not traces:
        raise ConfigError(f"{file} holds no trace; give a trace a line")
    return traces


def concatenate(traces: Sequence[Trace]) -> Trace:
    """One output made of several, which changes its kind where they meet."""
    if any(trace.drafted is not None for trace in traces):
        drafted = tuple(
            tokens
            for trace in traces
            for tokens in trace.drafted or (max(trace.accepted),) * len(trace)
        )
    else:
        drafted = None
    return Trace(
        "+".join(trace.id for trace in traces),
        tuple(tokens for trace in traces for tokens in trace.accepted),
        drafted,
        traces[0].prompt_tokens,
    )


def _parse(line: str, field: str | None, *, where: str) -> Trace:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where} is no JSON; give a trace a line") from None
    if not isinstance(record, Mapping):
        raise ConfigError(f'{where} is no object; write {{"id": ..., "accepted": [...]}}')
    name = field or "accepted"
    if name not in record:
        lists = ", ".join(key for key, value in record.items() if isinstance(value, list))
        raise ConfigError(
            f"{where} has no {name!r}; name the list to take with --field"
            + (f", such as {lists}" if lists else "")
        )
    accepted = _counts(record[name], where=f"{where}: {name}", least=0 if field is None else 1)
    if field is not None:
        accepted = tuple(each - 1 for each in accepted)
    drafted = None
    if field is None and record.get("drafted") is not None:
        drafted = _counts(record["drafted"], where=f"{where}: drafted", least=0)
        if len(drafted) != len(accepted) or any(map(int.__lt__, drafted, accepted)):
            raise ConfigError(
                f"{where}: drafted must have as many numbers as accepted, each at least as large"
            )
    prompt_tokens = record.get("prompt_tokens", 0)
    return Trace(
        str(record.get("id", where)),
        accepted,
        drafted,
        prompt_tokens if isinstance(prompt_tokens, int) else 0,
    )


def _counts(values: Any, *, where: str, least: int) -> tuple[int, ...]:
    if not isinstance(values, Iterable) or isinstance(values, (str, Mapping)):
        raise ConfigError(f"{where} is no list; give whole numbers of at least {least}")
    counts = tuple(values)
    if not counts or not all(type(each) is int and each >= least for each in counts):
        raise ConfigError(f"{where} must hold whole numbers of at least {least}, one or more")
    return counts
