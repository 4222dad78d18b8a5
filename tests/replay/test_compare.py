from __future__ import annotations

import random
import sys

import pytest

from outrider.errors import ConfigError
from outrider.replay import Trace, World, as_json, as_markdown, compare, draw


def texts(number: int = 16, tokens: int = 120) -> list[Trace]:
    rng = random.Random(7)
    return [
        Trace(str(index), tuple(min(int(rng.expovariate(0.5)), 12) for _ in range(tokens)))
        for index in range(number)
    ]


@pytest.fixture(scope="module")
def comparisons():
    worlds = [World(rtt_ms=rtt, batch=batch) for rtt in (0.3, 30.0) for batch in (1, 256)]
    return list(compare(texts(), worlds, lookaheads=[1, 2]))


def test_goodput_keeps_up_with_the_best_fixed_lookahead_everywhere(comparisons) -> None:
    for each in comparisons:
        assert each.of_best > 0.97
        assert each.of_window > 0.99
        assert each.of_clairvoyant < 1


def test_the_best_fixed_lookahead_may_be_none_at_all(comparisons) -> None:
    assert [each.best > 0 for each in comparisons] == [True, True, False, False]
    assert comparisons[-1].fixed[0] == comparisons[-1].plain


def test_a_table_has_a_line_per_world(comparisons) -> None:
    lines = as_markdown(comparisons).splitlines()
    assert len(lines) == 6
    assert lines[-1].startswith("| RTT 30 ms, batch 256 |")
    assert "(k = 0)" in lines[-1]


def test_all_speeds_are_told_as_values(comparisons) -> None:
    first = as_json(comparisons)["comparisons"][0]
    assert first["fixed"][first["best"]] == max(first["fixed"].values())
    assert first["world"]["rtt_ms"] == 0.3


def test_without_a_fixed_world_there_is_no_clairvoyant() -> None:
    worlds = [World(jitter=0.2), World(batch=64, swing=True), World(ahead=True)]
    for each in compare(texts(2, 60), worlds, lookaheads=[2]):
        assert each.clairvoyant is None
        assert each.of_clairvoyant is None
        assert as_markdown([each]).endswith("|  |")


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_comparison_is_drawn(comparisons, tmp_path, suffix) -> None:
    file = tmp_path / f"plot.{suffix}"
    draw(comparisons, file)
    assert file.stat().st_size > 1000


def test_a_format_that_nobody_knows_is_refused(comparisons, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"name it \.svg or \.png"):
        draw(comparisons, tmp_path / "plot.nothing")


def test_a_plot_says_what_it_needs(comparisons, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="needs matplotlib"):
        draw(comparisons, tmp_path / "plot.svg")
