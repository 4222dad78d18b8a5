from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.errors import ConfigError, CorruptModel
from outrider.train.card import RECORD, Data, Record, read_record, write_card
from outrider.train.card_measures import check_measures
from outrider.train.evaluate import Evaluation
from outrider.train.forecast import Forecast, Interval

DATA = Data(
    prompts="abc",
    categories=("code", "writing"),
    answers=1200,
    tokens=34567,
    held_out=130,
    temperatures=(0.0, 1.0),
    sampling={"top_p": 1.0, "max_tokens": 256},
)
INTERVAL = {"value": 2.4, "low": 2.3, "high": 2.5}
DRAFT = {
    "name": "toy",
    "method": "greedy",
    "acceptance": 0.612,
    "tokens_per_round": [INTERVAL] * 5,
    "best": 3,
    "speedup": [{"value": 1.5, "low": 1.4, "high": 1.6}] * 5,
    "verdict": "pays",
}
MEASURES = {
    "evaluations": [
        {
            "source": {"model_hash": "0123abcd"},
            "temperature": 0.0,
            "lookahead": 4,
            "prompts": 50,
            "tokens": 4000,
            "drafts": [DRAFT],
            "categories": {"code": {"prompts": 20, "drafts": [DRAFT]}},
        }
    ]
}
FULL = Record(
    name="toy-draft",
    target_id="org/toy",
    target_hash="0123abcd",
    target_dtype="int4",
    vocab_fingerprint="ffff",
    vocab_size=8192,
    target_vocab_size=49152,
    parameters=11_800_000,
    dtype="bfloat16",
    trimmed=True,
    prompt_files=("chat.jsonl", "code.jsonl"),
    data=(DATA,),
    recipe={"loss.kind": "lk", "steps": 2000},
    measures=MEASURES,
    licence="Apache-2.0",
    base_models=("org/toy", "org/small"),
)


def card_of(folder: Path, record: Record) -> tuple[dict[str, Any], str]:
    write_card(folder, record)
    _, front, body = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(front), body


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_card(tmp_path, FULL)
    again = read_record(tmp_path)
    assert again == FULL
    assert json.loads((tmp_path / RECORD).read_text())["version"] == 1


def test_a_folder_without_a_record_has_none(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 2}', '{"version": 1, "name": "a"}'])
def test_a_record_that_cannot_be_read_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(CorruptModel, match=r"export the draft again"):
        read_record(tmp_path)


def test_the_front_matter_is_what_model_hubs_read(tmp_path: Path) -> None:
    front, _ = card_of(tmp_path, FULL)
    assert front == {
        "license": "apache-2.0",
        "base_model": ["org/toy", "org/small"],
        "library_name": "outrider",
        "pipeline_tag": "text-generation",
        "tags": ["speculative-decoding", "draft-model", "outrider"],
    }


def test_what_is_not_known_is_left_out_of_the_front_matter(tmp_path: Path) -> None:
    front, _ = card_of(tmp_path, replace(FULL, licence=None, base_models=(), trimmed=False))
    assert front["library_name"] == "transformers"
    assert front.keys().isdisjoint({"license", "base_model"})


def test_names_from_outside_cannot_break_the_front_matter_or_a_table(tmp_path: Path) -> None:
    odd = 'x"\n---\nlicense: mine | y'
    front, body = card_of(
        tmp_path, replace(FULL, base_models=(odd,), name=odd, prompt_files=(odd,))
    )
    assert front["base_model"] == [odd]
    assert front["license"] == "apache-2.0"
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") in (3, 10) for line in rows)


def test_the_card_tells_target_data_and_recipe(tmp_path: Path) -> None:
    _, body = card_of(tmp_path, FULL)
    for told in (
        "`0123abcd`",
        "served in int4",
        "8,192 tokens of the target's 49,152",
        "11,800,000",
        "chat.jsonl, code.jsonl",
        "1,200 (130 held out)",
        "34,567",
        "| temperatures | 0, 1 |",
        "| loss.kind | lk |",
        "never drafted",
        "never correctness",
    ):
        assert told in body, told


def test_a_card_without_measures_says_so(tmp_path: Path) -> None:
    _, body = card_of(tmp_path, replace(FULL, measures={}))
    assert "None were given: judge it before you serve it." in body


def test_measures_are_told_by_temperature_and_category(tmp_path: Path) -> None:
    _, body = card_of(tmp_path, FULL)
    assert "At temperature 0, predicted from 4,000 tokens of 50 prompts" in body
    row = "| toy | greedy | 61.2% | 2.40 (2.30 to 2.50) | 3 | 1.50 (1.40 to 1.60) | pays |"
    assert f"| all | 50 {row}" in body
    assert f"| code | 20 {row}" in body


def test_measures_are_checked_for_their_target_and_their_form() -> None:
    check_measures(MEASURES, "0123abcd")
    with pytest.raises(ConfigError, match=r"hash 0123abcd, and this one has ffff"):
        check_measures(MEASURES, "ffff")
    for odd in ({}, {"evaluations": 3}, {"evaluations": [{}]}):
        with pytest.raises(ConfigError, match="none that `outrider train evaluate --json` wrote"):
            check_measures(odd, "0123abcd")


def test_what_evaluate_writes_is_what_a_card_reads() -> None:
    """The names that cards use are those of the report's own nouns."""
    evaluation = {each.name for each in fields(Evaluation)}
    assert MEASURES["evaluations"][0].keys() <= evaluation
    assert DRAFT.keys() <= {each.name for each in fields(Forecast)}
    assert INTERVAL.keys() == {each.name for each in fields(Interval)}
