"""The monitor accuses no honest drafter and finds the usual mistakes soon."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from outrider.types import DRAFT_TOTAL, DraftRow, SampledDraft
from outrider.verify import Calibration, declare, draw

VOCAB = 50


def logits_of(seed: int, count: int, scale: float = 2.0) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal((count, VOCAB))


def row_of(logits: np.ndarray, temperature: float = 1.0) -> DraftRow:
    return declare(np.arange(VOCAB), np.exp((logits - logits.max()) / temperature), 16)


def one(token: int, row: DraftRow) -> SampledDraft:
    return SampledDraft((token,), (row,), "test")


def until_tripped(monitor: Calibration, declared, drawn_from, seed: int) -> int | None:
    """How many tokens were drawn, from other rows than declared, before the monitor trips."""
    tickets = np.random.default_rng([seed, 1]).integers(DRAFT_TOTAL, size=len(declared))
    for index, (row, source) in enumerate(zip(declared, drawn_from, strict=True)):
        monitor.observe(one(draw(source, int(tickets[index])), row))
        if monitor.tripped:
            return index + 1
    return None


def test_the_evidence_against_an_honest_drafter_is_1_on_average_exactly() -> None:
    rows = [row_of(logits) for logits in logits_of(0, 6)]
    for counted in range(1, 7):
        mean = 0.0
        for pattern in itertools.product((True, False), repeat=counted):
            monitor, weight = Calibration(alpha=1e-300), 1.0
            for drawn, row in zip(pattern, rows, strict=False):
                favourite = int(np.argmax(row.counts))
                prob = float(row.probs()[favourite])
                monitor.observe(one(int(row.token_ids[favourite if drawn else favourite - 1]), row))
                weight *= prob if drawn else 1.0 - prob
            mean += weight * monitor.evidence
        assert mean == pytest.approx(1.0, abs=1e-12)


def test_honest_drafters_are_accused_no_more_often_than_promised() -> None:
    # At a level where false alarms can be counted; 1e-6 would show nothing.
    rows = [row_of(logits) for logits in logits_of(1, 150)]
    alarms = sum(
        until_tripped(Calibration(alpha=0.2), rows, rows, seed) is not None for seed in range(100)
    )
    assert 0 < alarms <= 20


def test_an_honest_drafter_stays_trusted_for_long() -> None:
    rows = [row_of(logits) for logits in logits_of(2, 500)] * 20
    monitor = Calibration()
    assert until_tripped(monitor, rows, rows, 2) is None
    assert monitor.drafted == 10_000
    assert abs(monitor.z) < 4


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("temperature", [0.8, 1.25])
def test_a_drafter_at_another_temperature_is_found_within_3000_tokens(
    temperature: float, seed: int
) -> None:
    logits = logits_of(seed, 3000)
    monitor = Calibration()
    drawn_from = [row_of(row, temperature) for row in logits]
    assert until_tripped(monitor, [row_of(row) for row in logits], drawn_from, seed) is not None
    assert (monitor.z > 0) == (temperature < 1)


def test_a_fault_that_begins_behind_many_good_rows_is_found_within_2000_tokens() -> None:
    logits = logits_of(4, 5000)
    rows = [row_of(row) for row in logits]
    drawn_from = rows[:3000] + [row_of(row, 0.7) for row in logits[3000:]]
    tripped_at = until_tripped(Calibration(), rows, drawn_from, 4)
    assert tripped_at is not None
    assert tripped_at > 3000


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_are_off_by_one_are_found_within_100_tokens(seed: int) -> None:
    # The same support everywhere, so that no token can lie outside its row.
    probs = np.random.default_rng(seed).dirichlet(np.full(8, 0.3), size=101)
    rows = [declare(np.arange(8), row + 1e-3, 8) for row in probs]
    assert until_tripped(Calibration(), rows[1:], rows[:-1], seed) is not None


def test_a_token_outside_its_row_trips_at_once() -> None:
    row = declare(np.array([2, 4]), np.array([0.5, 0.5]), 2)
    for token in (1, 3, 5):
        monitor = Calibration()
        monitor.observe(one(token, row))
        assert monitor.tripped


def test_an_accusation_is_not_taken_back() -> None:
    row = declare(np.array([2, 4]), np.array([0.5, 0.5]), 2)
    monitor = Calibration()
    monitor.observe(one(3, row))
    evidence = monitor.evidence
    for _ in range(2000):
        monitor.observe(SampledDraft((2, 4), (row, row), "test"))
    assert monitor.tripped
    assert monitor.evidence == evidence
    assert (monitor.drafted, abs(monitor.z) < 0.1) == (4000, True)


def test_rows_of_a_single_token_are_skipped_but_must_hold_it() -> None:
    row = declare(np.array([9]), np.array([1.0]), 1)
    monitor = Calibration()
    for _ in range(100):
        monitor.observe(one(9, row))
    assert (monitor.drafted, monitor.z, monitor.evidence, monitor.tripped) == (0, 0.0, 1.0, False)
    monitor.observe(one(8, row))
    assert monitor.tripped


def test_the_lowest_id_is_the_likeliest_among_equals() -> None:
    row = DraftRow(np.array([3, 6, 7]), np.array([21845, 21845, 21845], dtype=np.uint16))
    monitor = Calibration()
    monitor.observe(one(3, row))
    assert monitor.z == pytest.approx(2**0.5)
    monitor.observe(one(6, row))
    assert monitor.z == pytest.approx(0.5)
