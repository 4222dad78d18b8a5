"""Weighing samples: every prompt, and all together."""

from __future__ import annotations

import numpy as np

from outrider.audit.plan import AuditPlan, Prompt
from outrider.audit.sampled import Samples, weigh

LAW = np.array([0.3, 0.3, 0.2, 0.1, 0.1])


def samples(rng: np.random.Generator, size: int, *, lie: float = 0.0) -> Samples:
    drawn = Samples()
    for side, law in enumerate([(1 - lie) * LAW + lie * np.eye(5)[0], LAW]):
        drawn.outcomes[side].extend((int(t),) for t in rng.choice(5, size=size, p=law))
    return drawn


def plan(prompts: int) -> AuditPlan:
    return AuditPlan("http://h", tuple(Prompt(str(index), "x") for index in range(prompts)))


def test_a_shift_too_small_for_one_prompt_is_caught_over_all_of_them() -> None:
    rng = np.random.default_rng(2)
    findings, together = weigh(plan(12), [samples(rng, 400, lie=0.12) for _ in range(12)], rng)
    assert min(finding.adjusted for finding in findings) > 0.01
    assert together.adjusted < 0.01
    assert together.detectable < min(finding.detectable for finding in findings)


def test_honest_samples_of_many_prompts_are_rarely_accused() -> None:
    rng = np.random.default_rng(2)
    accused = 0
    for _ in range(20):
        findings, together = weigh(plan(3), [samples(rng, 100) for _ in range(3)], rng)
        accused += min(together.adjusted, *(finding.adjusted for finding in findings)) <= 0.1
    assert accused <= 2 + 4  # a tenth of 20, and three standard deviations


def test_a_single_prompt_is_a_single_test() -> None:
    rng = np.random.default_rng(3)
    [finding], together = weigh(plan(1), [samples(rng, 200)], rng)
    assert finding.adjusted == finding.comparison.p_value
    assert together.adjusted == finding.adjusted


def test_samples_of_unequal_size_are_weighed_too() -> None:
    rng = np.random.default_rng(4)
    drawn = samples(rng, 300)
    del drawn.outcomes[0][100:]
    [finding], _ = weigh(plan(1), [drawn], rng)
    assert finding.comparison.counts.sum(axis=1).tolist() == [100, 300]
    assert finding.adjusted > 0.01
