"""Prompts from files, and the conversations that they open."""

from __future__ import annotations

import json

import pytest

from outrider.bench import Prompt, read_prompts
from outrider.errors import ConfigError


def write(tmp_path, *rows: object, name: str = "file.jsonl"):
    file = tmp_path / name
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return file


def test_a_line_is_a_chat_of_its_turns_or_a_text_to_continue(tmp_path) -> None:
    file = write(tmp_path, {"turns": ["a", "b"], "category": "c", "id": 7}, {"prompt": "once upon"})
    assert read_prompts([file]) == [
        Prompt("file", 0, "c", ("a", "b")),
        Prompt("file", 1, "file", ("once upon",), chat=False),
    ]


def test_a_limit_takes_so_many_of_each_file_evenly_spread(tmp_path) -> None:
    files = [
        write(tmp_path, *({"turns": [str(n)]} for n in range(7)), name=name)
        for name in ("a.jsonl", "b.jsonl")
    ]
    assert [p.text for p in read_prompts(files, limit=3)] == ["0", "2", "4"] * 2


def test_only_the_first_turns_may_be_taken(tmp_path) -> None:
    [prompt] = read_prompts([write(tmp_path, {"turns": ["a", "b", "c"]})], turns=2)
    assert prompt.turns == ("a", "b")


def test_a_file_that_is_named_twice_is_read_once(tmp_path) -> None:
    file = write(tmp_path, {"turns": ["a"]})
    assert len(read_prompts([file, file])) == 1


@pytest.mark.parametrize(
    "row", [{"turns": []}, {}, {"turns": ["a"], "prompt": "b"}, {"turns": [1]}, 7]
)
def test_a_line_that_is_no_prompt_is_named(tmp_path, row) -> None:
    with pytest.raises(ConfigError, match=r"line 2 of .*file\.jsonl"):
        read_prompts([write(tmp_path, {"turns": ["a"]}, row)])


def test_a_file_without_prompts_shows_what_one_looks_like(tmp_path) -> None:
    file = tmp_path / "file.jsonl"
    file.write_text("\n")
    with pytest.raises(ConfigError, match=r'has no prompts; write one a line: \{"turns"'):
        read_prompts([file])


def test_the_answers_before_a_turn_are_put_into_its_history() -> None:
    prompt = Prompt("file", 0, "any", ("a", "b", "c"))
    assert prompt.question(["A", "B"]).messages == (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "B"},
        {"role": "user", "content": "c"},
    )


def test_a_warm_up_begins_otherwise_than_the_question() -> None:
    prompt = Prompt("file", 0, "any", ("a",))
    [message] = prompt.warm_up().messages
    assert not message["content"].startswith("a")
    assert message["content"].endswith("a")
