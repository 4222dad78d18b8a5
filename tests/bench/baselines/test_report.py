"""The comparison as a page."""

from __future__ import annotations

import pytest

from outrider.bench.baselines.records import FailureRecord, Record
from outrider.bench.baselines.report import make_report, rows
from outrider.errors import ConfigError
from tests.bench.baselines.making import SETTING, answered

TWO: list[Record] = [
    SETTING,
    answered("plain", 0, decode_s=1.0),
    answered("plain", 1, decode_s=2.0),
    answered("fast", 0, decode_s=0.5, plain="plain"),
    answered("fast", 1, decode_s=0.25, plain="plain", token_ids=(1, 2, 4), ttft_s=0.7),
]


def test_a_ratio_is_the_geometric_mean_over_prompts_and_the_speed_that_of_all() -> None:
    fast, plain = rows(TWO, "edits", "plain")
    assert (fast.mode, plain.mode) == ("fast", "plain")  # the fastest first
    assert fast.ratio is not None
    assert fast.ratio.mean == pytest.approx(4.0)  # of 2 and 8
    assert fast.tokens_per_s == pytest.approx(20 / 0.75)
    assert plain.tokens_per_s == pytest.approx(20 / 3)
    assert fast.ttft_s == pytest.approx(0.6)
    assert fast.repeats == (1, 2)
    assert plain.repeats == (0, 0)


def test_ratios_are_taken_within_a_group() -> None:
    slower = [
        answered("plain", 0, group="h", decode_s=4.0),
        answered("other", 0, group="h", decode_s=2.0),
    ]
    found = {row.mode: row for row in rows([*TWO, *slower], "edits", "plain")}
    assert found["other"].ratio is not None
    assert found["other"].ratio.mean == pytest.approx(2.0)
    alone = answered("alone", 0, group="i")
    found = {row.mode: row for row in rows([*TWO, alone], "edits", "plain")}
    assert found["alone"].ratio is None


def test_a_page_names_setting_modes_and_what_did_not_run() -> None:
    failures: list[Record] = [
        FailureRecord("g", "vLLM", "illegal instruction"),
        FailureRecord("g", "fast", "once it did not start"),
        FailureRecord("g", "fast", "refused", "edits", 7),
        FailureRecord("g", "fast", "was asked again", "edits", 1),
    ]
    page = make_report(TWO + failures, "plain")
    assert "Target big.gguf, draft model small.gguf; 2 threads" in page
    assert "llama.cpp: llama-cpp-python==1" in page
    assert "| fast | 2 | 26.7 | 4.00 (2.00 to 8.00) | 0.60 | 2.0 | 1 of 2 |" in page
    assert "| plain | 2 | 6.7 | 1 | 0.50 | 2.0 | - |" in page
    assert page.partition("What did not run")[2].strip().splitlines() == [
        "- vLLM: illegal instruction",
        "- fast on edits 7: refused",
    ]


def test_an_answer_that_came_at_once_has_neither_speed_nor_ratio() -> None:
    page = make_report([*TWO, answered("still", decoded=0, ttft_s=None)], "plain")
    assert "| still | 1 | - | - | - | 2.0 | - |" in page


def test_a_baseline_that_was_not_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match="no answers of 'x' on edits; a baseline may be plain, f"):
        make_report(TWO, "x")


def test_without_answers_there_is_no_page() -> None:
    with pytest.raises(ConfigError, match="no answers yet"):
        make_report([SETTING], "plain")
