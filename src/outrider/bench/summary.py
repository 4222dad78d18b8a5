"""What the requests of one configuration come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.bench.answer import Answer, Counting
from outrider.bench.recording import Recording
from outrider.bench.statistics import Spread, spread

__all__ = ["Acceptance", "Summary", "decode_speed", "summarize"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What became of drafts, in the answers that tell it.

    Attributes:
        drafted, accepted: tokens.
        tokens_per_round: the mean acceptance length; None if rounds are not told.
    """

    drafted: int
    accepted: int
    tokens_per_round: float | None

    @property
    def rate(self) -> float | None:
        """Accepted over drafted; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one configuration. Throughputs are per second of its blocks.

    Attributes:
        completed: requests with an answer.
        errors: how often each was met.
        duration_s: of its blocks, together.
        input_tokens, cached_tokens: of prompts; None if not told by every answer.
        output_tokens: of answers.
        counting: how tokens were counted.
        decode_speed: tokens/s, all answers together; None if there is nothing to tell it from.
        tokens_per_chunk: None if chunks are not counted.
        acceptance: None if nothing is told of drafts.
        ttft_s: one entry per turn.
        tpot_s, itl_s, chunk_gap_s, latency_s: as docs/bench.md defines them.
    """

    label: str
    completed: int
    errors: dict[str, int]
    duration_s: float
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    counting: tuple[Counting, ...]
    decode_speed: float | None
    tokens_per_chunk: float | None
    acceptance: Acceptance | None
    ttft_s: tuple[Spread | None, ...]
    tpot_s: Spread | None
    itl_s: Spread | None
    chunk_gap_s: Spread | None
    latency_s: Spread | None

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    @property
    def request_throughput(self) -> float | None:
        """Requests per second."""
        return self._per_s(self.completed)

    @property
    def output_throughput(self) -> float | None:
        """Output tokens per second, of all streams together."""
        return self._per_s(self.output_tokens)

    @property
    def total_token_throughput(self) -> float | None:
        """Prompt and output tokens per second."""
        return self._per_s(self.output_tokens + (self.input_tokens or 0))

    def _per_s(self, count: int) -> float | None:
        return count / self.duration_s if self.duration_s > 0 and self.completed else None


def summarize(recording: Recording, subject: int) -> Summary:
    """What the requests of one configuration come to, so far."""
    records = recording.records_of(subject)
    answers = [record.answer for record in records if record.answer is not None]
    by_turn: dict[int, list[float]] = {}
    for record in records:
        if record.answer is not None:
            by_turn.setdefault(record.turn, []).append(record.answer.ttft_s)
    gaps = [gap for answer in answers for gap in answer.gaps_s()]
    counted = bool(answers) and all(answer.counting.per_chunk for answer in answers)
    pieces = [(gap / tokens, tokens) for gap, tokens in gaps if tokens] if counted else []
    chunks = sum(len(answer.chunks) for answer in answers)
    tokens = sum(answer.tokens for answer in answers)
    return Summary(
        label=recording.labels[subject],
        completed=len(answers),
        errors=dict(Counter(record.error for record in records if record.answer is None)),
        duration_s=sum(block.duration_s for block in recording.blocks_of(subject)),
        input_tokens=_total([answer.prompt_tokens for answer in answers]),
        cached_tokens=_total([answer.cached_tokens for answer in answers]),
        output_tokens=tokens,
        counting=tuple(dict.fromkeys(answer.counting for answer in answers)),
        decode_speed=decode_speed(answers),
        tokens_per_chunk=tokens / chunks if counted else None,
        acceptance=_acceptance(answers),
        ttft_s=tuple(spread(by_turn[turn]) for turn in sorted(by_turn)),
        tpot_s=spread([answer.tpot_s for answer in answers if answer.tpot_s is not None]),
        itl_s=spread([gap for gap, _ in pieces], [tokens for _, tokens in pieces]),
        chunk_gap_s=spread([gap for gap, _ in gaps]),
        latency_s=spread([answer.latency_s for answer in answers]),
    )


def decode_speed(answers: Sequence[Answer]) -> float | None:
    """(n - 1) / (t_last - t_first) in tokens/s, all answers together; None without any."""
    timed = [answer for answer in answers if answer.tpot_s is not None]
    seconds = sum(answer.decode_s for answer in timed)
    return sum(answer.tokens - 1 for answer in timed) / seconds if timed else None


def _acceptance(answers: Sequence[Answer]) -> Acceptance | None:
    told = [(answer.tokens, answer.drafts) for answer in answers if answer.drafts is not None]
    if not told:
        return None
    rounds = _total([drafts.rounds for _, drafts in told])
    return Acceptance(
        drafted=sum(drafts.drafted for _, drafts in told),
        accepted=sum(drafts.accepted for _, drafts in told),
        tokens_per_round=sum(tokens for tokens, _ in told) / rounds if rounds else None,
    )


def _total(values: Sequence[int | None]) -> int | None:
    told = [value for value in values if value is not None]
    return sum(told) if told and len(told) == len(values) else None
