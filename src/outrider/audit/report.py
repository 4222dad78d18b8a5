"""A report as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from outrider.audit.findings import (
    GreedyFinding,
    Report,
    Retold,
    SampledFinding,
    SeededFinding,
    Verdict,
)

__all__ = ["render"]

_WORST_CELLS = 5
_SHOWN_CLAIMS = 20
_NAME_WIDTH = 12
_NUMBERS = (
    *("samples", "drafted", "cells", "G", "p", "adjusted"),
    *("", "TV", "honest TV", "finds TV"),
)
_SPARE = ("cells", "G", "samples")
"""Columns of the sampled part that a narrow terminal does without, the first to go first."""
_STYLES = {
    Verdict.NO_DIFFERENCE: "bold green",
    Verdict.DIFFERS: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
}


def render(report: Report, console: Console) -> None:
    """Print `report`: the parts, then the verdict."""
    other = "speculation off" if report.baseline is None else report.baseline
    _say(console, f"{report.model} on {report.url}, against {other}")
    unit = "tokens" if report.ids else "pieces of text (the server gives no token ids)"
    _say(
        console,
        f"\nSampled: do the first {report.tokens} {unit} follow the same distribution?",
        "bold",
    )
    console.print(_fitting(report, console))
    for finding in report.sampled:
        if finding.adjusted <= report.alpha:
            console.print(_worst(finding))
    _say(console, f"\nGreedy: {_greedy(report.greedy)}")
    for greedy in report.greedy:
        if greedy.retold.differs_at is not None:
            _say(console, f"  {greedy.name}: {_difference(greedy.retold)}{_repeats(greedy)}")
    if any(greedy.differs for greedy in report.greedy):
        _say(
            console,
            "  Where two candidates are nearly equal, an engine whose results depend on the shape "
            "of its batches may settle either way; look at their log probabilities.",
            "dim",
        )
    _say(console, f"Seeded: {_seeded(report.seeded)}")
    for seeded in report.seeded:
        if seeded.retold is not None and seeded.retold.differs_at is not None:
            _say(console, f"  {seeded.name}: {_difference(seeded.retold)}")
    for claim in _claims(report):
        _say(console, f"The server says: {claim}", "dim")
    console.print()
    console.print(
        Text.assemble(
            (str(report.verdict), _STYLES[report.verdict]), ": ", "; ".join(report.reasons), "."
        )
    )


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style))


def _fitting(report: Report, console: Console) -> Table:
    """The sampled part, without so many of the columns to spare that the rest fits."""
    longest = max(len(finding.name) for finding in report.sampled)
    room = console.width + max(0, longest - _NAME_WIDTH)  # a name may be shortened to this
    unlimited = console.options.update(max_width=10 * console.width)
    for left_out in range(len(_SPARE)):
        table = _table(report, _SPARE[:left_out])
        if Measurement.get(console, unlimited, table).maximum <= room:
            return table
    return _table(report, _SPARE)


def _table(report: Report, without: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("prompt", min_width=_NAME_WIDTH)
    shown = [index for index, name in enumerate(_NUMBERS) if name not in without]
    for name in (_NUMBERS[index] for index in shown):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)

    def add(name: Text, *cells: str | Text) -> None:
        table.add_row(name, *(cells[index] for index in shown))

    for finding in report.sampled:
        compared = finding.comparison
        on, off = (int(size) for size in compared.counts.sum(axis=1))
        add(
            Text(finding.name, overflow="ellipsis", no_wrap=True),
            f"{on}+{off}",
            str(finding.drafts.drafted) if finding.drafts.told else "?",
            str(len(compared.cells)),
            f"{compared.g:.1f}",
            _probability(compared.p_value),
            _probability(finding.adjusted),
            _mark(finding.adjusted, report.alpha),
            f"{compared.tv:.3f}",
            f"{compared.tv_floor:.3f}",
            f"{finding.detectable:.3f}",
        )
    if len(report.sampled) > 1:
        all_of_them = report.together
        add(
            Text("all together", style="italic"),
            *("", "", "", f"{all_of_them.g:.1f}"),
            _probability(all_of_them.p_value),
            _probability(all_of_them.adjusted),
            _mark(all_of_them.adjusted, report.alpha),
            *("", "", f"{all_of_them.detectable:.3f}"),
        )
    return table


def _mark(adjusted: float, alpha: float) -> Text:
    return Text("DIFFERS", "bold red") if adjusted <= alpha else Text("same", "green")


def _probability(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"


def _worst(finding: SampledFinding) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2))
    table.add_column(Text(f"most different on {finding.name}"))
    table.add_column("speculative", justify="right")
    table.add_column("plain", justify="right")
    for cell, on, off in finding.comparison.worst(_WORST_CELLS):
        table.add_row(Text(str(cell)), str(on), str(off))
    return table


def _greedy(findings: Sequence[GreedyFinding]) -> str:
    same = sum(finding.retold.differs_at is None for finding in findings)
    length = sum(finding.retold.length for finding in findings)
    return f"{same} of {len(findings)} outputs identical ({length} tokens)"


def _repeats(finding: GreedyFinding) -> str:
    if finding.repeats:
        return " (without speculation the server repeats itself)"
    return " (without speculation the server does not repeat itself either)"


def _seeded(findings: Sequence[SeededFinding]) -> str:
    honoured = [finding.retold for finding in findings if finding.retold is not None]
    if not honoured:
        return "the server does not honour seeds, so there is nothing to compare"
    same = sum(retold.differs_at is None for retold in honoured)
    said = f"{same} of {len(honoured)} outputs identical"
    if len(honoured) < len(findings):
        said += f"; on {len(findings) - len(honoured)} prompts the seed is not honoured"
    if same < len(honoured) and not any(finding.differs for finding in findings):
        said += "; the server does not promise that they are"
    return said


def _difference(retold: Retold) -> str:
    return (
        f"differs at {retold.differs_at}: {retold.with_speculation} with speculation, "
        f"{retold.without} without"
    )


def _claims(report: Report) -> list[str]:
    claims = set(report.greedy_drafts.claims)
    for finding in report.sampled:
        claims |= finding.drafts.claims
    return sorted(
        f"verification {method}, exact {exact}" + (f" ({reason})" if reason else "")
        for method, exact, reason in claims
        if method is not None
    )[:_SHOWN_CLAIMS]
