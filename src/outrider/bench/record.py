"""A run as JSON: what it comes to, and every request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from outrider.bench.compare import Grouping, compare
from outrider.bench.recording import Record, Recording
from outrider.bench.statistics import Spread
from outrider.bench.summary import Summary, summarize

__all__ = ["as_json"]


def as_json(
    recording: Recording, settings: Mapping[str, Any], group_by: Grouping
) -> dict[str, Any]:
    """Everything that was measured. Names are `vllm bench serve`'s where they mean the same."""
    subjects = range(len(recording.labels))
    values: dict[str, Any] = {
        "settings": dict(settings),
        "interrupted": recording.interrupted,
        "configurations": [
            _summary(summarize(recording, subject))
            | {"requests": [_record(record) for record in recording.records_of(subject)]}
            for subject in subjects
        ],
    }
    if len(subjects) > 1:
        values["comparison"] = [asdict(group) for group in compare(recording, group_by)]
    return values


def _summary(summary: Summary) -> dict[str, Any]:
    acceptance = summary.acceptance
    values: dict[str, Any] = {
        "label": summary.label,
        "completed": summary.completed,
        "failed": summary.failed,
        "errors": summary.errors,
        "duration": summary.duration_s,
        "total_input_tokens": summary.input_tokens,
        "cached_input_tokens": summary.cached_tokens,
        "total_output_tokens": summary.output_tokens,
        "counting": list(summary.counting),
        "request_throughput": summary.request_throughput,
        "output_throughput": summary.output_throughput,
        "total_token_throughput": summary.total_token_throughput,
        "decode_speed": summary.decode_speed,
        "tokens_per_chunk": summary.tokens_per_chunk,
        "acceptance": None
        if acceptance is None
        else asdict(acceptance) | {"acceptance_rate": acceptance.rate},
    }
    for turn, ttft in enumerate(summary.ttft_s, 1):
        values |= _spread("ttft" if turn == 1 else f"ttft_turn_{turn}", ttft)
    values |= _spread("tpot", summary.tpot_s)
    values |= _spread("itl_per_token", summary.itl_s)
    values |= _spread("itl_per_chunk", summary.chunk_gap_s)
    return values | _spread("e2el", summary.latency_s)


def _spread(name: str, spread: Spread | None) -> dict[str, float]:
    if spread is None:
        return {}
    return {f"{kind}_{name}_ms": 1000 * value for kind, value in asdict(spread).items()}


def _record(record: Record) -> dict[str, Any]:
    values: dict[str, Any] = {
        "source": record.prompt.source,
        "index": record.prompt.index,
        "category": record.prompt.category,
        "turn": record.turn,
    }
    answer = record.answer
    if answer is None:
        return values | {"error": record.error}
    return values | {
        "ttft": answer.ttft_s,
        "latency": answer.latency_s,
        "output_tokens": answer.tokens,
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "finish_reason": answer.finish_reason,
        "drafts": None if answer.drafts is None else asdict(answer.drafts),
        "chunks": [[chunk.at - answer.asked_at, chunk.tokens] for chunk in answer.chunks],
        "text": answer.text,
    }
