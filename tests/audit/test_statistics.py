"""The test itself: valid on honest samples, strong on shifted ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outrider.audit.statistics import (
    Cell,
    bin_outcomes,
    compare,
    detectable_tv,
    draw_null,
    g_statistics,
    holm,
    p_value,
    total_variations,
)

LAW = np.array([0.4, 0.2, 0.15, 0.1, 0.08, 0.05, 0.02])


def draw(rng: np.random.Generator, size: int, law=LAW) -> list[tuple[int, ...]]:
    return [(int(token),) for token in rng.choice(len(law), size=size, p=law)]


def test_holm_agrees_with_an_example_by_hand() -> None:
    # Sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1, and never falling.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_g_agrees_with_its_definition() -> None:
    counts = np.array([[30, 12, 0], [25, 10, 7]])
    expected = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / counts.sum()
    g = 2 * sum(
        observed * math.log(observed / mean)
        for observed, mean in zip(counts.flat, expected.flat, strict=True)
        if observed
    )
    assert g_statistics(counts[:1], counts.sum(0))[0] == pytest.approx(g)


def test_total_variation_agrees_with_an_example_by_hand() -> None:
    counts = np.array([[5, 3, 2], [4, 4, 12]])
    found = total_variations(counts[:1], counts.sum(0))[0]
    assert found == pytest.approx((0.3 + 0.1 + 0.4) / 2)


def test_p_values_of_honest_samples_are_uniform() -> None:
    rng = np.random.default_rng(1)
    found = np.sort(
        [
            compare(draw(rng, 150), draw(rng, 150), tables=400, rng=rng, min_count=1).p_value
            for _ in range(250)
        ]
    )
    distance = np.abs(found - (np.arange(250) + 0.5) / 250).max()
    assert distance < 1.95 / math.sqrt(250)  # Kolmogorov-Smirnov at 0.1%


def test_p_values_stay_honest_where_nearly_every_outcome_is_rare() -> None:
    rng = np.random.default_rng(2)
    law = np.full(300, 1 / 300)
    low = sum(
        compare(draw(rng, 60, law), draw(rng, 60, law), tables=200, rng=rng, min_count=1).p_value
        <= 0.1
        for _ in range(150)
    )
    assert low <= 15 + 4 * math.sqrt(13.5)


def test_a_shifted_distribution_is_caught() -> None:
    rng = np.random.default_rng(3)
    shifted = 0.85 * LAW + 0.15 * np.eye(7)[3]
    found = compare(draw(rng, 1000), draw(rng, 1000, shifted), tables=2000, rng=rng)
    assert found.p_value == 1 / 2001
    assert found.tv > 2 * found.tv_floor
    assert found.worst(1)[0][0] == Cell((3,), True)


def test_the_exact_p_value_agrees_with_chi_square_on_large_counts() -> None:
    rng = np.random.default_rng(4)
    counts = np.array([[9000, 6200, 4800], [9150, 6170, 4680]])
    null = draw_null(counts, 40_000, rng)
    g = float(g_statistics(counts[:1], counts.sum(0))[0])
    chi_square = math.exp(-g / 2)  # the survival function with 2 degrees of freedom
    assert 0.05 < chi_square < 0.8
    assert p_value(g, null.g) == pytest.approx(chi_square, abs=4 * math.sqrt(0.25 / 40_000))


def test_the_noise_floor_is_what_honest_samples_show() -> None:
    rng = np.random.default_rng(5)
    pairs = [compare(draw(rng, 200), draw(rng, 200), tables=200, rng=rng) for _ in range(200)]
    assert np.mean([pair.tv for pair in pairs]) == pytest.approx(
        np.mean([pair.tv_floor for pair in pairs]), rel=0.1
    )


def test_a_shift_of_the_size_named_is_found_in_about_8_cases_of_10() -> None:
    rng = np.random.default_rng(6)
    law = np.full(8, 1 / 8)
    null = compare(draw(rng, 500, law), draw(rng, 500, law), tables=2000, rng=rng).null
    size = detectable_tv(null.g, 500, level=0.01, rng=rng)
    # The hardest shift to see changes all cells by the same factor, half of them up.
    high, low = law.copy(), law.copy()
    high[::2] *= 1 + size
    high[1::2] *= 1 - size
    low[::2] *= 1 - size
    low[1::2] *= 1 + size
    found = [
        compare(draw(rng, 500, high), draw(rng, 500, low), tables=500, rng=rng).p_value <= 0.01
        for _ in range(150)
    ]
    assert 0.65 < np.mean(found) < 0.95


def test_outcomes_that_never_vary_still_limit_what_could_be_found() -> None:
    rng = np.random.default_rng(7)
    found = compare([(1, 2)] * 100, [(1, 2)] * 100, tables=100, rng=rng)
    assert (found.p_value, found.tv) == (1.0, 0.0)
    assert detectable_tv(found.null.g, 100, level=0.01, rng=rng) >= 0.1


def test_rare_outcomes_are_counted_by_how_they_begin() -> None:
    first = [(1, 1)] * 6 + [(1, 2), (1, 3), (1, 4), (7, 7)]
    second = [(1, 1)] * 6 + [(1, 5), (1, 6), (1, 7), (8, 8)]
    cells, counts = bin_outcomes(first, second, max_cells=50, min_count=5)
    assert [str(cell) for cell in cells] == ["1 1", "1 ...", "(all others)"]
    assert counts.tolist() == [[6, 3, 1], [6, 3, 1]]


def test_an_output_that_ended_is_not_taken_for_the_beginning_of_another() -> None:
    cells, counts = bin_outcomes([(1,)] * 9, [(1, 2)] * 9, max_cells=50, min_count=5)
    assert len(cells) == 2
    assert counts.sum(axis=0).tolist() == [9, 9]


def test_there_are_hardly_more_cells_than_allowed() -> None:
    rng = np.random.default_rng(8)
    outcomes = [tuple(row) for row in rng.integers(0, 9, size=(4000, 3)).tolist()]
    cells, counts = bin_outcomes(outcomes[:2000], outcomes[2000:], max_cells=20, min_count=1)
    assert 10 < len(cells) <= 20
    assert counts.sum(axis=1).tolist() == [2000, 2000]


def test_text_is_shown_quoted_and_ids_as_they_are() -> None:
    assert str(Cell(("a", r" b\n"), True)) == r"'a b\n'"
    assert str(Cell((3, 4), False)) == "3 4 ..."
    assert str(Cell((), True)) == "(empty)"
