"""Verifiers that are wrong in ways that engines have shipped.

`reaches_and_passes` writes the block rule down a second time, by the other form of its denominator,
so that the mutants share no line with what they are to keep honest.
"""

from __future__ import annotations

import itertools

import numpy as np

from outrider.verify import Outcome, token_law

Prefix = tuple[int, ...]
Probs = np.ndarray


def reaches_and_passes(
    draft: Prefix, draft_rows: Probs, target_rows: Probs, frozen_from: int | None = None
) -> tuple[list[float], list[float]]:
    """P_0..P_k and h_0..h_k. From `frozen_from` on, P is no longer updated."""
    reaches = [1.0]
    for index, token in enumerate(draft):
        if frozen_from is not None and index >= frozen_from:
            reaches.append(reaches[-1])
            continue
        ratio = target_rows[index, token] / draft_rows[index, token]
        reaches.append(float(min(1.0, reaches[-1] * ratio)))
    passes = [1.0]
    for index in range(1, len(draft)):
        gap = reaches[index] * target_rows[index] - draft_rows[index]
        over, under = np.maximum(gap, 0.0).sum(), np.maximum(-gap, 0.0).sum()
        passes.append(float(min(1.0, over / under)) if under > 0.0 else 1.0)
    return reaches, [*passes, reaches[-1]] if draft else passes


def following(draft, draft_rows, target_rows, length: int, reach: float) -> Probs:
    """What the token behind `length` kept ones is drawn from."""
    if length == len(draft):
        return target_rows[length]
    rest = np.maximum(reach * target_rows[length] - draft_rows[length], 0.0)
    return rest / rest.sum() if rest.sum() > 0.0 else target_rows[length]


def outcomes_of(draft, draft_rows, target_rows, reaches, chances) -> list[Outcome]:
    """A law from the probability of each length kept."""
    return [
        Outcome(chance, length, following(draft, draft_rows, target_rows, length, reaches[length]))
        for length, chance in enumerate(chances)
    ]


def longest_passing(passes: list[float]) -> list[float]:
    """Probability of each length to be the longest that passes, with independent tests."""
    return [
        passes[length] * float(np.prod([1.0 - other for other in passes[length + 1 :]]))
        for length in range(len(passes))
    ]


def plain_block(draft, draft_rows, target_rows) -> list[Outcome]:
    """The block rule as it should be."""
    reaches, passes = reaches_and_passes(draft, draft_rows, target_rows)
    return outcomes_of(draft, draft_rows, target_rows, reaches, longest_passing(passes))


def early_stop(draft, draft_rows, target_rows) -> list[Outcome]:
    """Test the lengths in order and stop at the first that fails."""
    reaches, passes = reaches_and_passes(draft, draft_rows, target_rows)
    chances = [
        float(np.prod(passes[: length + 1])) * (1.0 - [*passes, 0.0][length + 1])
        for length in range(len(passes))
    ]
    return outcomes_of(draft, draft_rows, target_rows, reaches, chances)


def uncapped(draft, draft_rows, target_rows) -> list[Outcome]:
    """Accept the whole draft by the product of its ratios, not capped on the way."""
    reaches, passes = reaches_and_passes(draft, draft_rows, target_rows)
    product = 1.0
    for index, token in enumerate(draft):
        product *= target_rows[index, token] / draft_rows[index, token]
    passes[-1] = float(min(1.0, product))
    return outcomes_of(draft, draft_rows, target_rows, reaches, longest_passing(passes))


def frozen_at_failure(draft, draft_rows, target_rows) -> list[Outcome]:
    """Stop updating P where the first length fails; the later ones are tested with what it was."""
    k = len(draft)
    outcomes = []
    for pattern in itertools.product((True, False), repeat=k):
        failed = pattern.index(False) + 1 if False in pattern else None
        reaches, passes = reaches_and_passes(draft, draft_rows, target_rows, failed)
        weight = 1.0
        for length, passed in enumerate(pattern, start=1):
            weight *= passes[length] if passed else 1.0 - passes[length]
        kept = max((n for n, passed in enumerate(pattern, start=1) if passed), default=0)
        rest = following(draft, draft_rows, target_rows, kept, reaches[kept])
        outcomes.append(Outcome(weight, kept, rest))
    return outcomes


def one_uniform(draft, draft_rows, target_rows) -> list[Outcome]:
    """Test every length with the same uniform: length i or more is kept if it is below any of the
    passing probabilities from i on."""
    reaches, passes = reaches_and_passes(draft, draft_rows, target_rows)
    at_least = [max(passes[length:]) for length in range(len(passes))] + [0.0]
    chances = [at_least[length] - at_least[length + 1] for length in range(len(passes))]
    return outcomes_of(draft, draft_rows, target_rows, reaches, chances)


def token_residual(draft, draft_rows, target_rows) -> list[Outcome]:
    """The block rule with the residual of the token rule, as if P were 1."""
    ones = [1.0] * (len(draft) + 1)
    _, passes = reaches_and_passes(draft, draft_rows, target_rows)
    return outcomes_of(draft, draft_rows, target_rows, ones, longest_passing(passes))


def replace_following(law, replacement):
    """A mutant of `law` that draws the next token from something else."""

    def mutant(draft, draft_rows, target_rows) -> list[Outcome]:
        return [
            Outcome(
                outcome.probability,
                outcome.accepted_count,
                replacement(draft, draft_rows, target_rows, outcome),
            )
            for outcome in law(draft, draft_rows, target_rows)
        ]

    return mutant


def own_row(draft, draft_rows, target_rows, outcome) -> Probs:
    """The target's own row, even behind a rejection."""
    return target_rows[outcome.accepted_count]


def scalar_residual(draft, draft_rows, target_rows, outcome) -> Probs:
    """A residual made with the draft probability of the drafted token alone."""
    length = outcome.accepted_count
    if length == len(draft):
        return target_rows[length]
    row = target_rows[length].copy()
    token = draft[length]
    row[token] = max(row[token] - draft_rows[length, token], 0.0)
    return row / row.sum()


def no_bonus(draft, draft_rows, target_rows, outcome) -> Probs:
    """No row for the bonus token: the one before it is used again."""
    return target_rows[-2] if outcome.accepted_count == len(draft) else outcome.next_probs


def swapped(draft, draft_rows, target_rows) -> list[Outcome]:
    """Take the draft's rows for the target's."""
    return token_law(draft, target_rows[:-1], np.vstack([draft_rows, target_rows[-1:]]))
