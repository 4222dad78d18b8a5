"""What an evaluation prints, writes and draws."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from outrider.errors import ConfigError
from outrider.train.plot import draw
from outrider.train.report import as_json, print_report
from tests.train.scenes import evaluation

GOOD, BAD = [0.8] * 24, [0.1] * 24


def printed(chances: dict[str, list[float]], token_s: float = 0.002) -> str:
    out = io.StringIO()
    print_report(evaluation(chances, token_s=token_s), Console(file=out, width=100))
    return out.getvalue()


def test_a_report_tells_numbers_and_verdict_of_each_draft() -> None:
    text = printed({"good": GOOD, "bad[2]": BAD})
    assert "toy [1] (int8) at temperature 1: 960 tokens of 24 prompts" in text
    rows = [line.split() for line in text.splitlines()]
    assert next(row for row in rows if row[:2] == ["good", "matching"])[2] == "80.0%"
    assert "good pays: " in text
    assert "bad[2] will not pay: at no lookahead" in text
    assert "times the first draft's speed" in text.partition("bad[2] will not pay")[2]
    assert "tokens takes 10.0, 11.0, 12.0, 14.0 ms; a draft: good 2.00 ms a token" in text


def test_a_report_says_where_it_is_not_sure() -> None:
    text = printed({"draft": [0.05, 0.7] * 8}, token_s=0.0033)
    assert "draft is not shown to pay" in text
    assert "16 prompts are few" in text


def test_a_report_is_split_by_category() -> None:
    text = printed({"good": GOOD, "bad": [*GOOD[:12], *BAD[:12]]})
    rows = [line.split() for line in text.splitlines()]
    assert ["chat", "12", "good"] in [row[:3] for row in rows]
    assert ["code", "12", "good"] in [row[:3] for row in rows]
    speeds = [line for line in text.splitlines() if line.split()[:1] == ["bad"]]
    assert len(set(speeds)) == len(speeds) >= 3


def test_everything_is_told_to_programs_in_plain_json() -> None:
    found = evaluation({"good": GOOD, "bad": BAD}, token_s=0.002)
    (said,) = json.loads(json.dumps(as_json([found]), allow_nan=False))["evaluations"]
    assert said["source"]["model_id"] == "toy [1]"
    assert [draft["name"] for draft in said["drafts"]] == ["good", "bad"]
    assert said["drafts"][0]["verdict"] == "pays"
    assert said["drafts"][1]["against_first"]["value"] < 1
    assert len(said["drafts"][0]["speedup"]) == 5
    assert said["categories"]["code"]["prompts"] == 12


@pytest.mark.parametrize(("name", "start"), [("e.svg", b"<?xml"), ("e.png", b"\x89PNG")])
def test_the_picture_is_of_the_kind_that_its_name_says(tmp_path, name, start) -> None:
    found = evaluation({"good": GOOD, "bad": BAD}, token_s=0.002)
    draw([found, found], tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_picture_of_no_known_kind_is_refused(tmp_path) -> None:
    found = evaluation({"good": GOOD}, token_s=0.002)
    with pytest.raises(ConfigError, match=r"name it \.svg or \.png"):
        draw([found], tmp_path / "e.nonsense")
