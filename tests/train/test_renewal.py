"""How rounds fall upon a text, against a plain recursion."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.train.acceptance import survival
from outrider.train.renewal import independent, walk


def rounds_from(place: int, reached: np.ndarray, drafted: np.ndarray, lookahead: int) -> float:
    """Expected rounds from `place` on, by the definition."""
    if place >= len(reached):
        return 0.0
    most = min(lookahead, int(drafted[place]))
    total = 1.0
    for held in range(most + 1):
        beyond = reached[place, held + 1] if held < most else 0.0
        weight = reached[place, held] - beyond
        if weight > 0:
            total += weight * rounds_from(place + held + 1, reached, drafted, lookahead)
    return total


@pytest.mark.parametrize("seed", range(3))
def test_rounds_are_those_of_a_walk_from_round_to_round(seed) -> None:
    draw = np.random.default_rng(seed)
    reached = survival(draw.random(9), 4)
    drafted = draw.integers(0, 5, 9)
    rounds = walk(reached, drafted)
    expected = [rounds_from(0, reached, drafted, k) for k in range(5)]
    np.testing.assert_allclose(rounds.total, expected)
    assert rounds.total[0] == 9


def test_a_walk_drawn_at_random_has_as_many_rounds_on_average() -> None:
    draw = np.random.default_rng(5)
    chances = draw.random(30)
    rounds = walk(survival(chances, 3), np.full(30, 3))
    counts = []
    for _ in range(4000):
        held, place, count = draw.random(30) < chances, 0, 0
        while place < 30:
            run = 0
            while run < 3 and place + run < 30 and held[place + run]:
                run += 1
            place, count = place + run + 1, count + 1
        counts.append(count)
    assert np.mean(counts) == pytest.approx(rounds.total[3], abs=4 * np.std(counts) / 4000**0.5)


def test_rounds_are_counted_by_the_tokens_drafted_in_them() -> None:
    # Nothing is ever accepted, so a round begins at every place.
    rounds = walk(survival(np.zeros(4), 2), np.array([2, 0, 1, 2]))
    np.testing.assert_array_equal(rounds.by_length, [[4, 0, 0], [1, 3, 0], [1, 1, 2]])


def test_acceptance_by_place_of_the_draft_counts_only_what_was_reached() -> None:
    # At every place the first token holds and the second does not.
    reached = np.array([[1.0, 1.0, 0.0]] * 6)
    rounds = walk(reached, np.full(6, 2))
    np.testing.assert_allclose(rounds.total, [6, 3, 3])
    np.testing.assert_allclose(rounds.accepted[2] / rounds.offered[2], [1, 1, 0])
    # With one token drafted there is no second one to reach.
    np.testing.assert_allclose(rounds.offered[1], [3, 3, 0])


def test_a_text_that_ends_within_a_draft_ends_the_walk() -> None:
    rounds = walk(survival(np.ones(5), 3), np.full(5, 3))
    np.testing.assert_allclose(rounds.total, [5, 3, 2, 2])


def test_where_the_draft_fails_rounds_begin_more_often_than_elsewhere() -> None:
    # A long run that holds, and a long one that does not: rounds are many where nothing holds.
    chances = np.array([1.0] * 40 + [0.0] * 40)
    reached = survival(chances, 4)
    rounds = walk(reached, np.full(80, 4))
    served = 80 / rounds.total[4]
    everywhere = rounds.starts[:5].sum() / 80
    assert served == pytest.approx(80 / 48)
    assert everywhere > 1.5 * served


def test_independent_acceptances_sum_a_geometric_series() -> None:
    assert independent(0.5, 3) == pytest.approx((1 - 0.5**4) / (1 - 0.5))
    assert independent(1.0, 4) == 5
