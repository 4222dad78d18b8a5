"""A run as a person reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.bench.compare import Comparison, Grouping, Ratio, compare
from outrider.bench.recording import Recording
from outrider.bench.statistics import Spread
from outrider.bench.summary import Summary, summarize

__all__ = ["render"]

_SHOWN_ERRORS: Final = 5
_CACHED_APART: Final = 0.05
_ENOUGH: Final = 6
"""Fewer pairs lie on one side of 1 by chance more often than once in twenty times."""
_NAMES: Final = "AB"
_ABSENT: Final = "-"


def render(recording: Recording, console: Console, group_by: Grouping) -> None:
    """Print what was measured: totals, times, and the comparison if there are two."""
    summaries = [summarize(recording, subject) for subject in range(len(recording.labels))]
    pair = len(summaries) > 1
    if recording.interrupted:
        _say(console, "Interrupted: this is what was measured until then.", "bold yellow")
    for name, summary in zip(_NAMES, summaries, strict=False):
        _say(console, f"{name}: {summary.label}" if pair else summary.label)
    console.print()
    console.print(_totals(summaries))
    console.print()
    console.print(_times(summaries))
    if pair:
        _comparison(console, compare(recording, group_by))
        _caches(console, *summaries)
    _counting(console, summaries)
    for name, summary in zip(_NAMES, summaries, strict=False):
        _errors(console, f"{name}: " if pair else "", summary)


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style))


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _totals(summaries: Sequence[Summary]) -> Table:
    names = _NAMES[: len(summaries)] if len(summaries) > 1 else [""]
    table = _table("Totals", *names)
    rows: list[tuple[str, Callable[[Summary], str]]] = [
        ("Successful requests", lambda s: str(s.completed)),
        ("Failed requests", lambda s: str(s.failed)),
        ("Benchmark duration (s)", lambda s: f"{s.duration_s:.1f}"),
        ("Input tokens", lambda s: _count(s.input_tokens)),
        ("  of these from cache", lambda s: _count(s.cached_tokens)),
        ("Generated tokens", lambda s: str(s.output_tokens)),
        ("Request throughput (req/s)", lambda s: _number(s.request_throughput, 2)),
        ("Output token throughput (tok/s)", lambda s: _number(s.output_throughput, 1)),
        ("Decode speed per stream (tok/s)", lambda s: _number(s.decode_speed, 1)),
        ("Tokens per chunk", lambda s: _number(s.tokens_per_chunk, 2)),
        ("Drafted tokens accepted", _accepted),
        ("Tokens per round", _tokens_per_round),
    ]
    for name, cell in rows:
        cells = [cell(summary) for summary in summaries]
        if any(shown != _ABSENT for shown in cells):
            table.add_row(name, *cells)
    return table


def _times(summaries: Sequence[Summary]) -> Table:
    kinds = ("mean", "median", "p99")
    names = [f"{name} " for name in _NAMES[: len(summaries)]] if len(summaries) > 1 else [""]
    table = _table("Times (ms)", *(name + kind for name in names for kind in kinds))
    turns = max(len(summary.ttft_s) for summary in summaries)
    rows: list[tuple[str, Callable[[Summary], Spread | None]]] = []
    for turn in range(turns):
        name = "TTFT" if turns == 1 else f"TTFT, turn {turn + 1}"
        rows.append((name, partial(_ttft, turn)))
    rows += [
        ("TPOT", lambda s: s.tpot_s),
        ("ITL per token", lambda s: s.itl_s),
        ("ITL per chunk", lambda s: s.chunk_gap_s),
        ("E2EL", lambda s: s.latency_s),
    ]
    for name, cell in rows:
        found = [cell(summary) for summary in summaries]
        if any(found):
            table.add_row(name, *(shown for spread in found for shown in _spread(spread)))
    return table


def _comparison(console: Console, groups: Sequence[Comparison]) -> None:
    console.print()
    if not groups[-1].pairs:
        _say(console, "A and B have no prompt in common that both answered.", "yellow")
        return
    table = _table("A / B", "pairs", "per prompt (95%)", "together")
    for group in groups:
        table.add_row(
            Text(group.name, "italic" if group is groups[-1] else ""),
            str(group.pairs),
            "",
            "",
        )
        table.add_row("  decode speed", *_ratio(group.decode_speed, faster_above=True))
        table.add_row("  TTFT", *_ratio(group.ttft, faster_above=False))
        table.add_row("  E2EL", *_ratio(group.latency, faster_above=False))
    console.print(table)
    _say(console, "Per prompt: the geometric mean of the ratios, with its 95% interval.", "dim")
    _say(
        console, "A is faster where its decode speed is above 1, or its TTFT or E2EL below.", "dim"
    )
    same, pairs = groups[-1].same_texts, groups[-1].pairs
    _say(console, f"A and B answered {same} of {pairs} prompts with the same text.")


def _caches(console: Console, one: Summary, other: Summary) -> None:
    """Warn if one side had its prompts read already, as a server asked by both may have them."""
    shares = [
        (summary.cached_tokens or 0) / (summary.input_tokens or 1) for summary in (one, other)
    ]
    if abs(shares[0] - shares[1]) > _CACHED_APART:
        _say(
            console,
            f"{shares[0]:.0%} of A's prompt tokens and {shares[1]:.0%} of B's came from a cache: "
            "their TTFT and E2EL do not compare.",
            "yellow",
        )


def _ratio(ratio: Ratio | None, *, faster_above: bool) -> tuple[str, Text, str]:
    """Pairs; ratio and interval, coloured where that leaves no doubt; the aggregate."""
    if ratio is None:
        return "0", Text(_ABSENT), _ABSENT
    found = ratio.per_prompt
    shown = f"{found.mean:.2f}"
    style = ""
    if ratio.pairs > 1:
        shown += f" ({found.low:.2f} to {found.high:.2f})"
        if ratio.pairs >= _ENOUGH and (found.low > 1 or found.high < 1):
            style = "green" if (found.low > 1) == faster_above else "red"
    return str(ratio.pairs), Text(shown, style), f"{ratio.aggregate:.2f}"


def _counting(console: Console, summaries: Sequence[Summary]) -> None:
    ways = ["; ".join(summary.counting) for summary in summaries]
    if len(set(ways)) == 1:
        ways = ways[:1]
    for name, way in zip(_NAMES, ways, strict=False):
        if way:
            whose = f" of {name}" if len(ways) > 1 else ""
            _say(console, f"Tokens{whose} counted by {way}.", "dim")


def _errors(console: Console, name: str, summary: Summary) -> None:
    ordered = sorted(summary.errors.items(), key=lambda pair: -pair[1])
    for error, times in ordered[:_SHOWN_ERRORS]:
        _say(console, f"{name}{times} failed: {error}", "red")
    if len(ordered) > _SHOWN_ERRORS:
        _say(console, f"{name}and {len(ordered) - _SHOWN_ERRORS} other errors", "red")


def _ttft(turn: int, summary: Summary) -> Spread | None:
    return summary.ttft_s[turn] if turn < len(summary.ttft_s) else None


def _accepted(summary: Summary) -> str:
    acceptance = summary.acceptance
    if acceptance is None or acceptance.rate is None:
        return _ABSENT
    return f"{acceptance.accepted}/{acceptance.drafted} ({acceptance.rate:.0%})"


def _tokens_per_round(summary: Summary) -> str:
    return _number(None if summary.acceptance is None else summary.acceptance.tokens_per_round, 2)


def _count(value: int | None) -> str:
    return _ABSENT if value is None else str(value)


def _number(value: float | None, digits: int) -> str:
    return _ABSENT if value is None else f"{value:.{digits}f}"


def _spread(spread: Spread | None) -> tuple[str, str, str]:
    if spread is None:
        return _ABSENT, _ABSENT, _ABSENT
    shown = (f"{1000 * value:.1f}" for value in (spread.mean, spread.median, spread.p99))
    return next(shown), next(shown), next(shown)
