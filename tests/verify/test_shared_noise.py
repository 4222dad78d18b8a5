"""Randomness used twice is caught, exactly: the unit interval is cut where decisions flip."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from outrider.verify import match
from tests.verify.mutants import following, reaches_and_passes
from tests.verify.oracle import (
    CAUGHT,
    EXACT,
    Prefix,
    drafts,
    joint_of_target,
    random_rows,
    stack,
    table_error,
)

V = 2
K = 2
LENGTH = 3
Box = dict[int, tuple[float, float]]  # what is known of the uniform of each position


def ends_of(rule: str, draft: Prefix, draft_rows, target_rows, box: Box, start: int):
    """Every way the acceptance tests of a round can end: accepted count, probability, and what is
    then known of the uniforms. `start` is the absolute position of the first drafted token."""
    reaches, passes = reaches_and_passes(draft, draft_rows, target_rows)
    if rule == "token":
        ratios = [target_rows[i, token] / draft_rows[i, token] for i, token in enumerate(draft)]
        passes = [1.0, *(float(min(1.0, ratio)) for ratio in ratios)]
        reaches = [1.0] * (len(draft) + 1)
    for pattern in itertools.product((True, False), repeat=len(draft)):
        known, weight = dict(box), 1.0
        for index, passed in enumerate(pattern):
            low, high = known.get(start + index, (0.0, 1.0))
            cut = min(max(passes[index + 1], low), high)
            narrowed = (low, cut) if passed else (cut, high)
            weight *= (narrowed[1] - narrowed[0]) / (high - low)
            if weight == 0.0:
                break
            known[start + index] = narrowed
            if rule == "token" and not passed:
                break  # the uniforms behind the first rejection are not looked at
        if weight > 0.0:
            lengths = [index + 1 for index, passed in enumerate(pattern) if passed]
            kept = max(lengths, default=0)
            if rule == "token":
                kept = next((i for i, passed in enumerate(pattern) if not passed), len(draft))
                if any(pattern[kept:]):
                    continue  # counted under the pattern that fails throughout
            yield (
                kept,
                weight,
                known,
                following(draft, draft_rows, target_rows, kept, reaches[kept]),
            )


def two_rounds(rule: str, seed: int, *, reuse: bool) -> float:
    """Error of the joint of two rounds whose uniforms belong to absolute positions."""
    target, draft_rows = random_rows(seed, V, "dirichlet")
    joint: dict[Prefix, float] = {}

    def extend(history: Prefix, box: Box, rounds: int, probability: float) -> None:
        if len(history) >= LENGTH or rounds == 0:
            rest = max(LENGTH - len(history), 0)
            for tail, chance in drafts(target, V, rest, history):
                key = (history + tail)[:LENGTH]
                joint[key] = joint.get(key, 0.0) + probability * chance
            return
        for draft, chance in drafts(draft_rows, V, K, history):
            rows = stack(draft_rows, draft, K, history), stack(target, draft, K + 1, history)
            for kept, weight, known, probs in ends_of(rule, draft, *rows, box, len(history)):
                for token in np.flatnonzero(probs):
                    extend(
                        (*history, *draft[:kept], int(token)),
                        known if reuse else {},
                        rounds - 1,
                        probability * chance * weight * float(probs[token]),
                    )

    extend((), {}, 2, 1.0)
    return table_error(joint, joint_of_target(target, V, LENGTH))


def test_uniforms_reused_by_absolute_position_are_caught_in_block_verification() -> None:
    assert two_rounds("block", 3, reuse=False) < EXACT
    assert two_rounds("block", 3, reuse=True) > CAUGHT


def test_the_token_rule_alone_does_not_meet_a_position_twice() -> None:
    assert two_rounds("token", 3, reuse=False) < EXACT
    assert two_rounds("token", 3, reuse=True) < EXACT


def one_uniform_for_test_and_token(seed: int, *, shared: bool) -> float:
    """Error of the token rule if the uniform that rejects a draft also picks what follows."""
    target, draft_rows = random_rows(seed, V + 1, "dirichlet")
    found: dict[Prefix, float] = {}
    for (drafted,), chance in drafts(draft_rows, V + 1, 1):
        ratio = float(min(1.0, target(())[drafted] / draft_rows(())[drafted]))
        found[(drafted,)] = found.get((drafted,), 0.0) + chance * ratio
        if ratio < 1.0:
            rest = np.maximum(target(()) - draft_rows(()), 0.0)
            edges = np.concatenate([[0.0], np.cumsum(rest / rest.sum())])
            edges[-1] = 1.0
            low = ratio if shared else 0.0
            widths = np.diff(np.maximum(edges, low)) / (1.0 - low)
            for token, width in enumerate(widths):
                found[(token,)] = found.get((token,), 0.0) + chance * (1.0 - ratio) * width
    return table_error(found, joint_of_target(target, V + 1, 1))


def test_a_uniform_that_both_rejects_and_picks_the_next_token_is_caught() -> None:
    assert one_uniform_for_test_and_token(0, shared=False) < EXACT
    assert one_uniform_for_test_and_token(0, shared=True) > CAUGHT


def two_tokens(target, draws: dict[int, float]) -> Prefix:
    """A draft of token 0 is matched; another token follows if it fails."""

    def sample(position: int, before: Prefix = (0,)) -> int:
        return int(draws[position] >= target(before[:position])[0])

    accepted, token = match((0,), sample)
    return (0, token) if accepted else (token, sample(1, (token,)))


def joint_of_matching(target, stream, choices: int = 1) -> dict[Prefix, float]:
    """What `choices` outputs of two tokens hold, one behind the other, if the target samples by
    inverting the uniform of `stream(choice, position)`, with the same draft for all."""
    prefixes = [(), *((token,) for token in range(V))]
    edges = np.concatenate([[0.0, 1.0], *(np.cumsum(target(prefix))[:-1] for prefix in prefixes)])
    cells = list(itertools.pairwise(np.unique(edges)))
    streams = sorted({stream(choice, position) for choice in range(choices) for position in (0, 1)})
    joint: dict[Prefix, float] = {}
    for cell in itertools.product(cells, repeat=len(streams)):
        uniform = {name: sum(ends) / 2 for name, ends in zip(streams, cell, strict=True)}
        outputs: Prefix = ()
        for choice in range(choices):
            draws = {position: uniform[stream(choice, position)] for position in (0, 1)}
            outputs += two_tokens(target, draws)
        weight = float(np.prod([high - low for low, high in cell]))
        joint[outputs] = joint.get(outputs, 0.0) + weight
    return joint


def test_noise_shared_by_two_positions_is_caught_in_matching() -> None:
    target, _ = random_rows(1, V, "dirichlet")
    expected = joint_of_target(target, V, 2)
    fresh = joint_of_matching(target, lambda choice, position: position)
    shared = joint_of_matching(target, lambda choice, position: 0)
    assert table_error(fresh, expected) < EXACT
    assert table_error(shared, expected) > CAUGHT


def test_noise_shared_by_two_choices_of_a_request_is_caught_in_matching() -> None:
    target, _ = random_rows(1, V, "dirichlet")
    alone = joint_of_target(target, V, 2)
    expected = {one + two: p * q for one, p in alone.items() for two, q in alone.items()}
    fresh = joint_of_matching(target, lambda choice, position: 2 * choice + position, choices=2)
    shared = joint_of_matching(target, lambda choice, position: position, choices=2)
    assert table_error(fresh, expected) < EXACT
    assert table_error(shared, expected) > CAUGHT


@pytest.mark.parametrize("choice", [0, 1])
def test_each_choice_with_shared_noise_looks_right_alone(choice: int) -> None:
    target, _ = random_rows(1, V, "dirichlet")
    shared = joint_of_matching(target, lambda choice, position: position, choices=2)
    alone: dict[Prefix, float] = {}
    for outputs, probability in shared.items():
        one = outputs[2 * choice : 2 * choice + 2]
        alone[one] = alone.get(one, 0.0) + probability
    assert table_error(alone, joint_of_target(target, V, 2)) < EXACT
