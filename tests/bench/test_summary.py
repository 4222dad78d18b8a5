"""What requests come to, and one configuration against another, on scripted times."""

from __future__ import annotations

import json
import math

import pytest
from rich.console import Console

from outrider.bench import (
    Block,
    Counting,
    Drafts,
    Record,
    Recording,
    as_json,
    compare,
    render,
    summarize,
)

from .scripted import answer_at, prompt


def recording(*sides) -> Recording:
    """Each side: answers, or errors, by prompt; a block for each."""
    made = Recording(["first", "second"][: len(sides)])
    for subject, entries in enumerate(sides):
        for asked, outcome in entries:
            block = Block(subject, 0.0)
            if isinstance(outcome, str):
                block.records.append(Record(asked, 0, 1.0, error=outcome))
            else:
                block.records.append(Record(asked, 0, outcome.chunks[-1].at, outcome))
            made.blocks.append(block)
    return made


FAST = answer_at(0.0, (1.0, 1), (1.5, 4), (2.0, 1), drafts=Drafts(8, 4, 3))
SLOW = answer_at(0.0, (1.0, 1), (6.0, 5), prompt_tokens=7, drafts=Drafts(0, 0, 2))


def test_times_and_speeds_follow_their_definitions() -> None:
    found = summarize(recording([(prompt(0), FAST)]), 0)
    assert (found.completed, found.failed, found.output_tokens) == (1, 0, 6)
    assert found.decode_speed == 5 / 1.0
    assert found.output_throughput == 6 / 2.0
    assert found.ttft_s[0].mean == 1.0
    assert found.tpot_s.mean == 1.0 / 5
    assert found.latency_s.mean == 2.0
    assert found.chunk_gap_s.mean == 0.5
    assert found.tokens_per_chunk == 2.0


def test_the_gap_before_a_chunk_is_spread_over_its_tokens() -> None:
    found = summarize(recording([(prompt(0), FAST)]), 0)
    assert found.itl_s.mean == pytest.approx((4 * 0.125 + 0.5) / 5)
    assert found.itl_s.median == 0.125


def test_acceptance_is_summed_over_the_answers() -> None:
    found = summarize(recording([(prompt(0), FAST), (prompt(1), SLOW)]), 0).acceptance
    assert (found.drafted, found.accepted, found.rate) == (8, 4, 0.5)
    assert found.tokens_per_round == 12 / 5


def test_what_not_every_answer_tells_is_not_told() -> None:
    found = summarize(recording([(prompt(0), FAST), (prompt(1), SLOW)]), 0)
    assert found.input_tokens is None
    uncounted = answer_at(0.0, (1.0, 1), counting=Counting.TOTAL)
    partly = summarize(recording([(prompt(0), FAST), (prompt(1), uncounted)]), 0)
    assert (partly.itl_s, partly.tokens_per_chunk) == (None, None)
    assert partly.chunk_gap_s.mean == 0.5


def test_errors_are_counted_by_name() -> None:
    found = summarize(recording([(prompt(0), "a"), (prompt(1), "a"), (prompt(2), "b")]), 0)
    assert found.errors == {"a": 2, "b": 1}
    assert (found.failed, found.decode_speed, found.output_throughput) == (3, None, None)


def test_ratios_are_taken_prompt_by_prompt_and_aggregates_beside_them() -> None:
    twice = answer_at(0.0, (0.5, 1), (2.5, 5), text="other")
    both = recording(
        [(prompt(0), FAST), (prompt(1), twice)], [(prompt(0), SLOW), (prompt(1), SLOW)]
    )
    [found] = compare(both, lambda prompt: prompt.source)
    assert found.pairs == found.decode_speed.pairs == 2
    assert found.decode_speed.per_prompt.mean == pytest.approx(math.sqrt(5 * 2.5))
    assert found.decode_speed.aggregate == pytest.approx((10 / 3) / 1.0)
    assert found.ttft.per_prompt.mean == pytest.approx(math.sqrt(0.5))
    assert found.same_texts == 1


def test_a_prompt_that_one_side_did_not_answer_is_no_pair() -> None:
    both = recording([(prompt(0), FAST), (prompt(1), "no")], [(prompt(0), SLOW), (prompt(1), SLOW)])
    assert [group.pairs for group in compare(both, lambda prompt: prompt.source)] == [1]


def test_a_conversation_that_broke_off_is_no_pair() -> None:
    long = prompt(0, "a", "b")
    both = recording([(long, FAST)], [(long, SLOW)])
    assert compare(both, lambda prompt: prompt.source)[-1].pairs == 0


def test_groups_come_before_all_of_them() -> None:
    pairs = [(prompt(0, category="x"), FAST), (prompt(1, category="y"), FAST)]
    found = compare(recording(pairs, pairs), lambda prompt: prompt.category)
    assert [(group.name, group.pairs) for group in found] == [("x", 1), ("y", 1), ("all", 2)]


def shown(made: Recording, width: int = 80) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        render(made, console, lambda prompt: prompt.source)
    return captured.get()


def test_a_comparison_fits_80_columns_and_names_what_it_shows() -> None:
    pairs = [(prompt(n, source="a_rather_long_name_of_a_file"), FAST) for n in range(3)]
    slow = [(asked, SLOW) for asked, _ in pairs]
    text = shown(recording(pairs, slow))
    assert "A: first" in text
    assert "5.00 (5.00 to 5.00)" in text
    assert "12/24 (50%)" in text
    assert "3 of 3 prompts with the same text" in text
    assert "…" not in text


def test_a_difference_is_coloured_where_there_are_enough_pairs_for_one() -> None:
    for pairs, coloured in ((5, False), (6, True)):
        asked = [prompt(n) for n in range(pairs)]
        made = recording([(one, FAST) for one in asked], [(one, SLOW) for one in asked])
        console = Console(width=80, highlight=False, force_terminal=True, color_system="standard")
        with console.capture() as captured:
            render(made, console, lambda prompt: prompt.source)
        assert ("\x1b[32m5.00" in captured.get()) == coloured


def test_a_single_configuration_is_shown_without_a_comparison() -> None:
    text = shown(recording([(prompt(0), FAST)]))
    assert "Output token throughput (tok/s)" in text
    assert "A /" not in text


def test_errors_and_an_early_end_are_shown() -> None:
    made = recording([(prompt(0), "TargetFailed: no [more]")])
    made.interrupted = True
    text = shown(made)
    assert "1 failed: TargetFailed: no [more]" in text
    assert text.startswith("Interrupted")


def test_prompts_that_one_side_had_cached_are_warned_of() -> None:
    warm = answer_at(0.0, (1.0, 1), (2.0, 1), prompt_tokens=100, cached_tokens=90)
    cold = answer_at(0.0, (1.0, 1), (2.0, 1), prompt_tokens=100, cached_tokens=0)
    text = shown(recording([(prompt(0), warm)], [(prompt(0), cold)]), width=120)
    assert "90% of A's prompt tokens and 0% of B's came from a cache" in text


def test_the_record_is_json_with_every_request() -> None:
    both = recording([(prompt(0), FAST), (prompt(1), "no")], [(prompt(0), SLOW)])
    found = json.loads(json.dumps(as_json(both, {"concurrency": 1}, lambda prompt: prompt.source)))
    one, other = found["configurations"]
    assert (one["completed"], one["failed"], one["errors"]) == (1, 1, {"no": 1})
    assert one["mean_ttft_ms"] == 1000.0
    assert one["median_itl_per_token_ms"] == 125.0
    assert one["requests"][0]["chunks"] == [[1.0, 1], [1.5, 4], [2.0, 1]]
    assert other["acceptance"]["acceptance_rate"] is None
    assert found["comparison"][-1]["decode_speed"]["per_prompt"]["mean"] == pytest.approx(5.0)
