"""Part 1: the same prompts sampled with and without speculation, interleaved in time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import numpy as np

from outrider.audit.arms import Arm, Drafts, in_parallel
from outrider.audit.findings import SampledFinding, Together
from outrider.audit.plan import AuditPlan, Prompt
from outrider.audit.statistics import (
    Comparison,
    Outcome,
    compare,
    detectable_tv,
    holm,
    p_value,
)

__all__ = ["Samples", "draw_samples", "weigh"]

_MIN_COUNT = 10


class Samples:
    """What both arms said to one prompt."""

    def __init__(self) -> None:
        self.outcomes: tuple[list[Outcome], list[Outcome]] = ([], [])
        self.drafts = (Drafts(), Drafts())


async def draw_samples(
    plan: AuditPlan,
    prompt: Prompt,
    arms: tuple[Arm, Arm],
    rng: np.random.Generator,
    advance: Callable[[int], None],
) -> Samples:
    """Draw the samples of one prompt.

    The arms take turns, in random order within each pair of requests, so that whatever changes on
    the server meanwhile (load, caches) meets both alike.

    Args:
        plan: how many.
        prompt: behind which.
        arms: with speculation, without.
        rng: decides who goes first.
        advance: told how many samples have come.
    """
    samples = Samples()

    async def ask(side: int, copies: int) -> None:
        answer = await arms[side].ask(prompt, plan.generate, plan.params, copies=copies)
        samples.drafts[side].add(answer)
        drawn = [arms[side].outcome(choice, plan.tokens) for choice in answer.choices[:copies]]
        samples.outcomes[side].extend(drawn)
        advance(len(drawn))

    jobs: list[Callable[[], Awaitable[None]]] = []
    most = arms[0].copies
    for start in range(0, plan.samples, most):
        copies = min(most, plan.samples - start)
        first = int(rng.integers(2))
        jobs += [partial(ask, first, copies), partial(ask, 1 - first, copies)]
    await in_parallel(jobs, plan.concurrency)
    return samples


def weigh(
    plan: AuditPlan, samples: Sequence[Samples], rng: np.random.Generator
) -> tuple[list[SampledFinding], Together]:
    """Test every prompt and all together, and correct for having made so many tests."""
    comparisons = [
        compare(*drawn.outcomes, tables=plan.tables, rng=rng, min_count=_MIN_COUNT)
        for drawn in samples
    ]
    sum_g = sum(comparison.g for comparison in comparisons)
    sum_null = np.sum([comparison.null.g for comparison in comparisons], axis=0)
    sum_p = p_value(sum_g, sum_null)
    tests = len(comparisons) + 1 if len(comparisons) > 1 else 1
    p_values = [comparison.p_value for comparison in comparisons]
    adjusted = holm([*p_values, sum_p][:tests])
    level = plan.alpha / tests
    findings = [
        SampledFinding(
            name=prompt.name,
            comparison=comparison,
            adjusted=corrected,
            detectable=detectable_tv(
                comparison.null.g, _size(comparison), level=level, rng=rng, min_count=_MIN_COUNT
            ),
            drafts=drawn.drafts[0],
        )
        for prompt, comparison, corrected, drawn in zip(
            plan.prompts, comparisons, adjusted, samples, strict=False
        )
    ]
    detectable = detectable_tv(
        sum_null,
        sum(_size(comparison) for comparison in comparisons),
        level=level,
        rng=rng,
        min_count=_MIN_COUNT * len(comparisons),
    )
    return findings, Together(sum_g, sum_p, adjusted[-1], detectable)


def _size(comparison: Comparison) -> int:
    """Samples per arm; their harmonic mean where they differ."""
    one, other = (int(size) for size in comparison.counts.sum(axis=1))
    return 2 * one * other // (one + other)
