"""What is up at the same time, and in which order it is asked."""

from __future__ import annotations

from outrider.bench.baselines.groups import make_groups, rotated
from outrider.bench.baselines.modes import Comparison, Mode, Process


def comparison(**sizes: float) -> Comparison:
    """A process and a mode of each name; those in capitals are anchors."""
    return Comparison(
        {name: Process("llama.cpp", size) for name, size in sizes.items()},
        {name: Mode(name, anchor=name.isupper()) for name in sizes},
    )


def test_all_that_fits_runs_together() -> None:
    (group,) = make_groups(comparison(a=3, B=2, c=4), 9)
    assert group.modes == ("a", "B", "c")


def test_what_does_not_fit_runs_later_beside_the_anchors() -> None:
    groups = make_groups(comparison(a=3, B=2, c=4, d=3), 8)
    assert [group.modes for group in groups] == [("a", "B", "d"), ("B", "c")]


def test_a_process_that_never_fits_still_runs_with_the_anchors_alone() -> None:
    groups = make_groups(comparison(B=2, huge=50, c=1), 8)
    assert [group.modes for group in groups] == [("B", "c"), ("B", "huge")]


def test_modes_of_one_process_run_in_one_group() -> None:
    shared = Comparison(
        {"p": Process("llama.cpp", 3), "q": Process("llama.cpp", 3)},
        {"x": Mode("p"), "y": Mode("q"), "z": Mode("p")},
    )
    assert [group.modes for group in make_groups(shared, 4)] == [("x", "z"), ("y",)]


def test_a_group_is_known_by_its_modes_whatever_their_order() -> None:
    (first,) = make_groups(comparison(a=1, b=1), 9)
    (second,) = make_groups(comparison(b=1, a=1), 9)
    (third,) = make_groups(comparison(a=1, c=1), 9)
    assert first.key == second.key != third.key


def test_every_mode_is_first_in_its_turn() -> None:
    turns = [list(rotated("abc", turn)) for turn in range(4)]
    assert ["".join(turn) for turn in turns] == ["abc", "bca", "cab", "abc"]
