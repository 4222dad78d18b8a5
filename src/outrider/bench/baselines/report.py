"""The comparison as a page of Markdown: one table for each file of prompts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.bench.baselines.records import AnswerRecord, FailureRecord, Record, SettingRecord
from outrider.bench.statistics import Interval, geometric_mean_interval
from outrider.errors import ConfigError

__all__ = ["Row", "make_report", "rows", "sources"]


@dataclass(frozen=True, slots=True)
class Row:
    """A mode on the prompts of one file.

    Attributes:
        mode: its name.
        prompts: answered.
        tokens_per_s: of all answers together, after each one's first chunk.
        ratio: of its decode speed to the baseline's, per prompt and within one group; None if they
            share no prompt.
        ttft_s: median.
        memory_bytes: most that it took after an answer.
        repeats: answers that are token for token those of its plain mode, and answers compared.
    """

    mode: str
    prompts: int
    tokens_per_s: float | None
    ratio: Interval | None
    ttft_s: float | None
    memory_bytes: int
    repeats: tuple[int, int]


def sources(records: Sequence[Record]) -> list[str]:
    """The prompt files of the answers, in order of appearance."""
    return list(dict.fromkeys(r.source for r in records if isinstance(r, AnswerRecord)))


def rows(records: Sequence[Record], source: str, baseline: str) -> list[Row]:
    """The modes on one file of prompts, the fastest first.

    A mode that was measured in several groups is taken from all of them.

    Raises:
        ConfigError: the baseline has no answers on these prompts.
    """
    answers = [r for r in records if isinstance(r, AnswerRecord) and r.source == source]
    by_key = {(r.group, r.prompt, r.mode): r for r in answers}
    modes = list(dict.fromkeys(r.mode for r in answers))
    if baseline not in modes:
        raise ConfigError(
            f"no answers of {baseline!r} on {source}; a baseline may be {', '.join(modes)}"
        )
    found = [_row(mode, baseline, by_key) for mode in modes]
    return sorted(found, key=lambda row: row.tokens_per_s or 0.0, reverse=True)


def _row(mode: str, baseline: str, by_key: dict[tuple[str, int, str], AnswerRecord]) -> Row:
    ours = {key: record for key, record in by_key.items() if key[2] == mode}
    ratios, repeated, compared = [], 0, 0
    for (group, prompt, _), record in ours.items():
        base = by_key.get((group, prompt, baseline))
        if base is not None and base.speed and record.speed:
            ratios.append(record.speed / base.speed)
        plain = by_key.get((group, prompt, record.plain)) if record.plain else None
        if plain is not None and plain.token_ids is not None and record.token_ids is not None:
            compared += 1
            repeated += plain.token_ids == record.token_ids
    decoded = sum(record.decoded for record in ours.values())
    decode_s = sum(record.decode_s for record in ours.values())
    waits = [record.ttft_s for record in ours.values() if record.ttft_s is not None]
    return Row(
        mode=mode,
        prompts=len({prompt for _, prompt, _ in ours}),
        tokens_per_s=decoded / decode_s if decoded and decode_s > 0 else None,
        ratio=geometric_mean_interval(ratios) if ratios else None,
        ttft_s=statistics.median(waits) if waits else None,
        memory_bytes=max(record.memory_bytes for record in ours.values()),
        repeats=(repeated, compared),
    )


def make_report(records: Sequence[Record], baseline: str) -> str:
    """The whole page.

    Raises:
        ConfigError: there is nothing to report, or the baseline was not measured.
    """
    named = sources(records)
    if not named:
        raise ConfigError("there are no answers yet; run the comparison first")
    lines = ["# Outrider and its peers", "", *_setting(records), ""]
    for source in named:
        lines += [f"## {source}", "", *_table(rows(records, source, baseline), baseline), ""]
    failed = _failures(records)
    if failed:
        lines += ["## What did not run", "", *failed, ""]
    return "\n".join(lines)


def _table(found: Sequence[Row], baseline: str) -> list[str]:
    return [
        f"| mode | prompts | tokens/s | ratio to {baseline} (95%) | TTFT, s | memory, GB | "
        "as its plain mode |",
        "|---|---|---|---|---|---|---|",
        *(_line(row, baseline) for row in found),
    ]


def _line(row: Row, baseline: str) -> str:
    speed = "-" if row.tokens_per_s is None else f"{row.tokens_per_s:.1f}"
    if row.mode == baseline:
        ratio = "1"
    elif row.ratio is None:
        ratio = "-"
    else:
        ratio = f"{row.ratio.mean:.2f} ({row.ratio.low:.2f} to {row.ratio.high:.2f})"
    wait = "-" if row.ttft_s is None else f"{row.ttft_s:.2f}"
    same, compared = row.repeats
    return (
        f"| {row.mode} | {row.prompts} | {speed} | {ratio} | {wait} | "
        f"{row.memory_bytes / 1e9:.1f} | {f'{same} of {compared}' if compared else '-'} |"
    )


def _setting(records: Sequence[Record]) -> list[str]:
    setting = next(record for record in records if isinstance(record, SettingRecord))
    loads = [record.load for record in records if isinstance(record, AnswerRecord)]
    draft = f", draft model {setting.draft}" if setting.draft else ""
    peers = "; ".join(
        f"{peer}: {', '.join(versions)}" for peer, versions in setting.peers.items() if versions
    )
    return [
        f"Target {setting.target}{draft}; {setting.threads} threads, one stream, greedy, up to "
        f"{setting.max_tokens} new tokens; {setting.cpu}.",
        "Every engine got the same token ids. The engines that were not being measured were "
        "stopped, and each prompt went through all modes of a group before the next, in an order "
        "that rotates.",
        "Tokens/s is decoding alone: tokens after an answer's first chunk over the time from its "
        "first chunk to its last, all answers together. A ratio is the geometric mean of the same "
        "per prompt, to the baseline's in the same group, with its 95% bootstrap interval.",
        f"The machine's load before an answer was {statistics.median(loads):.1f} in the median, at "
        f"most {max(loads):.1f}.",
        *([f"Versions: {peers}."] if peers else []),
    ]


def _failures(records: Sequence[Record]) -> list[str]:
    """The last reason of each mode that failed and, as far as it was to, never answered after."""
    answered = {(r.mode, r.source, r.prompt) for r in records if isinstance(r, AnswerRecord)}
    started = {mode for mode, _, _ in answered}
    reasons: dict[tuple[str, str], str] = {}
    for record in records:
        if isinstance(record, FailureRecord):
            if record.source is None and record.mode not in started:
                reasons[record.mode, ""] = record.reason
            elif record.source and (record.mode, record.source, record.prompt) not in answered:
                reasons[record.mode, f" on {record.source} {record.prompt}"] = record.reason
    return [f"- {mode}{where}: {reason}" for (mode, where), reason in reasons.items()]
