"""The exact oracle: the joint distribution that draft-and-verify emits, by enumeration.

A random model is a table of next-token rows by prefix. For every possible draft, with its
probability, the verifier's outcome law is composed with the target's own rows up to a fixed
length; the result must equal the product of the target's rows. No sampling is involved, so errors
are those of floating point.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable

import numpy as np

from outrider.verify import Outcome

Probs = np.ndarray
Prefix = tuple[int, ...]
Rows = Callable[[Prefix], Probs]
Law = Callable[[Prefix, Probs, Probs], list[Outcome]]

KINDS = ("dirichlet", "peaked", "zeros", "one-hot", "equal", "disjoint", "nearly equal")


def random_rows(seed: int, vocab_size: int, kind: str) -> tuple[Rows, Rows]:
    """Target and draft rows by prefix, of one of the awkward kinds."""

    @functools.cache
    def rows(prefix: Prefix) -> tuple[Probs, Probs]:
        draw = np.random.default_rng([seed, len(prefix), *prefix])
        concentration = 0.3 if kind == "peaked" else 1.5
        target = draw.dirichlet(np.full(vocab_size, concentration))
        draft = draw.dirichlet(np.full(vocab_size, concentration))
        match kind:
            case "zeros":
                target[draw.integers(vocab_size)] = 0.0
                draft[draw.integers(vocab_size)] = 0.0
            case "one-hot":
                target = np.eye(vocab_size)[draw.integers(vocab_size)]
                draft = np.eye(vocab_size)[draw.integers(vocab_size)]
            case "equal":
                draft = target.copy()
            case "disjoint":
                half = vocab_size // 2
                target[half:], draft[:half] = 0.0, 0.0
            case "nearly equal":
                draft = target * (1 + 1e-15 * draw.standard_normal(vocab_size))
        return target / target.sum(), draft / draft.sum()

    return lambda prefix: rows(prefix)[0], lambda prefix: rows(prefix)[1]


def stack(rows: Rows, draft: Prefix, count: int, history: Prefix = ()) -> Probs:
    """Rows behind the first 0 .. count - 1 tokens of `draft`, shape [count, V]."""
    if count == 0:
        return np.empty((0, rows(history).size))
    return np.array([rows(history + draft[:index]) for index in range(count)])


def drafts(
    draft_rows: Rows, vocab_size: int, k: int, history: Prefix = ()
) -> Iterable[tuple[Prefix, float]]:
    """Every draft of length k that can be drawn, with its probability."""
    for draft in itertools.product(range(vocab_size), repeat=k):
        probability = 1.0
        for index, token in enumerate(draft):
            probability *= float(draft_rows(history + draft[:index])[token])
        if probability > 0.0:
            yield draft, probability


def joint_of_target(target: Rows, vocab_size: int, length: int) -> dict[Prefix, float]:
    """What plain decoding emits."""
    return dict(drafts(target, vocab_size, length))


def joint_of_law(
    law: Law,
    target: Rows,
    draft_source: Callable[[Prefix], Iterable[tuple[Prefix, float]]],
    declared: Rows,
    length: int,
    rounds: int = 1,
) -> dict[Prefix, float]:
    """What `rounds` rounds emit, continued by the target alone up to `length` tokens.

    Args:
        law: given a draft, declared draft rows and target rows, its outcomes.
        target: the true rows.
        draft_source: the drafts that are made behind a history, with their probabilities.
        declared: the rows that the drafter says it sampled from.
    """
    # Probability of each history, by rounds that are still to come. Histories only grow, so one
    # sweep by length settles them all, and equal histories are merged before they are extended.
    mass: dict[tuple[Prefix, int], float] = {((), rounds): 1.0}
    for size in range(length):
        for history, left in [key for key in mass if len(key[0]) == size]:
            probability = mass.pop((history, left))
            for tail, chance in _extensions(law, target, draft_source, declared, history, left):
                key = ((*history, *tail)[:length], max(left - 1, 0))
                mass[key] = mass.get(key, 0.0) + probability * chance
    joint: dict[Prefix, float] = {}
    for (history, _), probability in mass.items():
        joint[history] = joint.get(history, 0.0) + probability
    return joint


def _extensions(law, target, draft_source, declared, history, rounds_left):
    """What one round emits behind a history; without one, a token of the target itself."""
    if rounds_left == 0:
        row = target(history)
        yield from (((int(token),), float(row[token])) for token in np.flatnonzero(row))
        return
    for draft, chance in draft_source(history):
        target_rows = stack(target, draft, len(draft) + 1, history)
        draft_rows = stack(declared, draft, len(draft), history)
        for outcome in law(draft, draft_rows, target_rows):
            for token in np.flatnonzero(outcome.next_probs):
                weight = chance * outcome.probability * float(outcome.next_probs[token])
                yield (*draft[: outcome.accepted_count], int(token)), weight


def joint_error(found: dict[Prefix, float], expected: dict[Prefix, float]) -> float:
    """Largest difference of any probability."""
    return max(abs(found.get(key, 0.0) - expected.get(key, 0.0)) for key in found | expected)
