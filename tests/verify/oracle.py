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

from outrider.verify import Outcome, onehot_law
from tests.verify.processing import penalised_rows, warped_rows

Probs = np.ndarray
Prefix = tuple[int, ...]
Rows = Callable[[Prefix], Probs]
Law = Callable[[Prefix, Probs, Probs], list[Outcome]]
Source = Callable[[Prefix, int | None], Iterable[tuple[Prefix, float, Rows]]]
"""The drafts made behind a history: tokens, probability, and the rows that the drafter declares.
The second argument is what the round before accepted; None in the first."""
Judged = Callable[[Prefix, Prefix], Probs]

KINDS = (
    "dirichlet",
    "peaked",
    "zeros",
    "one-hot",
    "equal",
    "disjoint",
    "nearly equal",
    "penalised",
    "warped",
)
EXACT = 1e-12
CAUGHT = 1e-3


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
            case "penalised":
                target, draft = penalised_rows(seed, vocab_size, prefix, prefix)
            case "warped":
                target, draft = warped_rows(seed, vocab_size, prefix)
        return target / target.sum(), draft / draft.sum()

    return lambda prefix: rows(prefix)[0], lambda prefix: rows(prefix)[1]


def onehot(draft: Prefix, draft_rows: Probs, target_rows: Probs) -> list[Outcome]:
    """`onehot_law` in the form of a law over declared rows, which it does not look at."""
    return onehot_law(draft, target_rows)


def stack(rows: Rows, draft: Prefix, count: int, history: Prefix = ()) -> Probs:
    """Rows behind the first 0 .. count - 1 tokens of `draft`, shape [count, V]."""
    if count == 0:
        return np.empty((0, rows(history).size))
    return np.array([rows(history + draft[:index]) for index in range(count)])


def drafts(rows: Rows, vocab_size: int, k: int, history: Prefix = ()):
    """Every draft of length k that can be drawn, with its probability."""
    for draft in itertools.product(range(vocab_size), repeat=k):
        probability = 1.0
        for index, token in enumerate(draft):
            probability *= float(rows(history + draft[:index])[token])
        if probability > 0.0:
            yield draft, probability


def sampled(
    rows: Rows, vocab_size: int, lookahead: int | Callable[[int | None], int], declared=None
) -> Source:
    """A drafter that draws from `rows` and, unless told otherwise, declares them.

    `lookahead` may depend on what the round before accepted, as a controller's does.
    """

    def source(history: Prefix, accepted: int | None):
        k = lookahead if isinstance(lookahead, int) else lookahead(accepted)
        for tokens, chance in drafts(rows, vocab_size, k, history):
            yield tokens, chance, declared or rows

    return source


def joint_of_target(target: Rows, vocab_size: int, length: int) -> dict[Prefix, float]:
    """What plain decoding emits."""
    return dict(drafts(target, vocab_size, length))


def joint_of_law(
    law: Law,
    target: Rows,
    source: Source,
    length: int,
    rounds: int = 1,
    judged: Judged | None = None,
) -> dict[Prefix, float]:
    """What `rounds` rounds emit, continued by the target alone up to `length` tokens.

    Args:
        law: given a draft, declared draft rows and target rows, its outcomes.
        target: the true rows.
        source: the drafts.
        judged: the target rows that a round is judged by, given its history and draft, if not
            the true ones.
    """
    # Probability of each history, by rounds that are still to come and the count accepted last.
    # Histories only grow, so one sweep by length settles them all, and equal states are merged
    # before they are extended.
    mass: dict[tuple[Prefix, int, int | None], float] = {((), rounds, None): 1.0}
    for size in range(length):
        for state in [state for state in mass if len(state[0]) == size]:
            probability = mass.pop(state)
            for tail, accepted, chance in _extensions(law, target, source, judged, *state):
                key = ((*state[0], *tail)[:length], max(state[1] - 1, 0), accepted)
                mass[key] = mass.get(key, 0.0) + probability * chance
    joint: dict[Prefix, float] = {}
    for (history, _, _), probability in mass.items():
        joint[history] = joint.get(history, 0.0) + probability
    return joint


def _extensions(law, target, source, judged, history, rounds_left, last_accepted):
    """What one round emits behind a history; without one, a token of the target itself."""
    if rounds_left == 0:
        row = target(history)
        yield from (((int(token),), None, float(row[token])) for token in np.flatnonzero(row))
        return
    for draft, chance, declared in source(history, last_accepted):
        if judged is None:
            target_rows = stack(target, draft, len(draft) + 1, history)
        else:
            target_rows = judged(history, draft)
        draft_rows = stack(declared, draft, len(draft), history)
        for outcome in law(draft, draft_rows, target_rows):
            accepted = outcome.accepted_count
            for token in np.flatnonzero(outcome.next_probs):
                weight = chance * outcome.probability * float(outcome.next_probs[token])
                yield (*draft[:accepted], int(token)), accepted, weight


def table_error(found: dict[Prefix, float], expected: dict[Prefix, float]) -> float:
    """Largest difference of any probability."""
    return max(abs(found.get(key, 0.0) - expected.get(key, 0.0)) for key in found | expected)


def error_of(law: Law, target: Rows, source: Source, length: int, **options) -> float:
    """Largest error of any probability in what a law emits."""
    vocab_size = target(()).size
    found = joint_of_law(law, target, source, length, **options)
    return table_error(found, joint_of_target(target, vocab_size, length))


def expected_accepted(law: Law, target: Rows, draft: Rows, k: int) -> float:
    """Mean count of accepted tokens in one round."""
    return sum(
        chance * outcome.probability * outcome.accepted_count
        for tokens, chance in drafts(draft, target(()).size, k)
        for outcome in law(tokens, stack(draft, tokens, k), stack(target, tokens, k + 1))
    )


def law_as_table(outcomes: list[Outcome]) -> dict[tuple[int, int], float]:
    """Probability by (accepted count, next token), as a sampler returns them."""
    table: dict[tuple[int, int], float] = {}
    for outcome in outcomes:
        for token in np.flatnonzero(outcome.next_probs):
            key = (outcome.accepted_count, int(token))
            weight = outcome.probability * float(outcome.next_probs[token])
            table[key] = table.get(key, 0.0) + weight
    return table
