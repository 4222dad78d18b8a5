"""Which conversations go through a draft together."""

from __future__ import annotations

import numpy as np

from outrider.train.order import epoch_parts, schedule

LENGTHS = np.random.default_rng(0).integers(5, 200, 500)
ALL = np.arange(500)


def one_epoch(epoch: int = 0, seed: int = 0, part_tokens: int = 800) -> list[list[int]]:
    return [part.tolist() for part in epoch_parts(LENGTHS, ALL, part_tokens, seed, epoch)]


def test_an_epoch_takes_every_conversation_once() -> None:
    assert sorted(index for part in one_epoch() for index in part) == ALL.tolist()


def test_conversations_that_are_of_no_use_are_left_out() -> None:
    parts = epoch_parts(LENGTHS, ALL[::3], 800, 0, 0)
    assert sorted(index for part in parts for index in part.tolist()) == ALL[::3].tolist()


def test_no_part_has_more_positions_than_allowed_with_padding() -> None:
    for part in one_epoch():
        assert LENGTHS[part].max() * len(part) <= 800


def test_a_conversation_longer_than_a_part_is_one_of_its_own() -> None:
    assert {len(part) for part in one_epoch(part_tokens=4)} == {1}


def test_little_is_padding() -> None:
    padded = sum(LENGTHS[part].max() * len(part) for part in one_epoch())
    assert LENGTHS.sum() > 0.8 * padded


def test_epochs_differ_and_seeds_differ() -> None:
    assert one_epoch(0) == one_epoch(0)
    assert one_epoch(0) != one_epoch(1)
    assert one_epoch(0) != one_epoch(0, seed=1)


def test_short_parts_do_not_come_first() -> None:
    longest = [int(LENGTHS[part].max()) for part in one_epoch()]
    assert longest != sorted(longest)


def test_a_run_has_whole_steps() -> None:
    parts = schedule(LENGTHS, ALL, epochs=1.5, part_tokens=800, parts_per_step=4, seed=0)
    assert len(parts) % 4 == 0
    assert abs(len(parts) - 1.5 * len(one_epoch())) <= 4


def test_a_run_over_little_data_has_a_step() -> None:
    parts = schedule(LENGTHS, ALL[:2], epochs=0.1, part_tokens=800, parts_per_step=4, seed=0)
    assert len(parts) == 4
