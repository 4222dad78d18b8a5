"""Two configurations on the same prompts, prompt by prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.bench.answer import Answer
from outrider.bench.recording import Recording
from outrider.bench.statistics import Interval, geometric_mean_interval
from outrider.bench.summary import decode_speed
from outrider.bench.workload import Prompt

__all__ = ["ALL", "Comparison", "Grouping", "Ratio", "compare"]

ALL = "all"

Grouping = Callable[[Prompt], str]

_Conversation = Sequence[Answer]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of a quantity of the first configuration to the second's, on the same prompts.

    Attributes:
        pairs: prompts that both have it for.
        per_prompt: geometric mean of their ratios.
        aggregate: ratio of the quantities of all these prompts together.
    """

    pairs: int
    per_prompt: Interval
    aggregate: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of some prompts, all or those of a file or category.

    Attributes:
        name: of the group; `ALL` for all.
        decode_speed: above 1 the first is faster; None without a pair.
        ttft, latency: seconds, so below 1 the first is faster.
        same_texts: prompts whose answers are equal, character by character.
        pairs: prompts that both answered.
    """

    name: str
    pairs: int
    same_texts: int
    decode_speed: Ratio | None
    ttft: Ratio | None
    latency: Ratio | None


def compare(recording: Recording, group_by: Grouping) -> list[Comparison]:
    """The first configuration against the second: by group, if there are several, and all."""
    ours, theirs = (_whole(recording, subject) for subject in (0, 1))
    groups: dict[str, list[Prompt]] = {}
    for prompt in ours:
        if prompt in theirs:
            groups.setdefault(group_by(prompt), []).append(prompt)
    named = list(groups.items()) if len(groups) > 1 else []
    everything = [prompt for prompts in groups.values() for prompt in prompts]
    return [
        _comparison(name, [(ours[prompt], theirs[prompt]) for prompt in prompts])
        for name, prompts in [*named, (ALL, everything)]
    ]


def _whole(recording: Recording, subject: int) -> dict[Prompt, _Conversation]:
    """Conversations in which every turn was answered."""
    found: dict[Prompt, list[Answer]] = {}
    for record in recording.records_of(subject):
        if record.answer is not None:
            found.setdefault(record.prompt, []).append(record.answer)
    return {
        prompt: answers for prompt, answers in found.items() if len(answers) == len(prompt.turns)
    }


def _comparison(name: str, pairs: Sequence[tuple[_Conversation, _Conversation]]) -> Comparison:
    return Comparison(
        name=name,
        pairs=len(pairs),
        same_texts=sum([a.text for a in one] == [a.text for a in other] for one, other in pairs),
        decode_speed=_ratio(pairs, decode_speed),
        ttft=_ratio(pairs, lambda answers: sum(answer.ttft_s for answer in answers)),
        latency=_ratio(pairs, lambda answers: sum(answer.latency_s for answer in answers)),
    )


def _ratio(
    pairs: Sequence[tuple[_Conversation, _Conversation]],
    quantity: Callable[[_Conversation], float | None],
) -> Ratio | None:
    ratios, used = [], []
    for one, other in pairs:
        mine, its = quantity(one), quantity(other)
        if mine and its:
            ratios.append(mine / its)
            used.append((one, other))
    if not ratios:
        return None
    ours = quantity([answer for one, _ in used for answer in one])
    theirs = quantity([answer for _, other in used for answer in other])
    aggregate = (ours or 0.0) / theirs if theirs else 0.0
    return Ratio(len(ratios), geometric_mean_interval(ratios), aggregate)
