from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.errors import TrainingError
from outrider.train.prompts import Prompt, digest, read_prompts


@pytest.fixture
def write(tmp_path: Path):
    def write(name: str, *rows: object) -> Path:
        file = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file

    return write


def only(file: Path) -> Prompt:
    [prompt] = read_prompts([file])
    return prompt


def test_turns_are_a_chat_of_the_lines_own_category(write) -> None:
    prompt = only(write("a.jsonl", {"turns": ["one", "two"], "category": "maths", "id": "x"}))
    assert prompt == Prompt("maths", turns=("one", "two"))
    assert prompt.chat


def test_the_category_is_else_the_files_name(write) -> None:
    assert only(write("code.jsonl", {"turns": ["one"]})).category == "code"


@pytest.mark.parametrize("name", ["prompt", "text"])
def test_a_text_is_to_be_continued(write, name) -> None:
    prompt = only(write("a.jsonl", {name: "Once upon"}))
    assert (prompt.chat, prompt.text) == (False, "Once upon")


def test_recorded_traffic_is_answered_anew_behind_its_last_question(write) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "How"}, {"type": "text", "text": "?"}],
        },
        {"role": "assistant", "content": "Fine, as it was recorded."},
    ]
    prompt = only(write("a.jsonl", {"messages": messages, "model": "x"}))
    assert prompt.opening == (("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello"))
    assert prompt.turns == ("How\n?",)


def test_paragraphs_of_plain_text_are_continued(write) -> None:
    prompts = read_prompts([write("book.txt", "First line", "and second.", "  ", "", "Next.")])
    assert {prompt.text for prompt in prompts} == {"First line\nand second.", "Next."}
    assert not any(prompt.chat for prompt in prompts)


def test_a_prompt_that_comes_twice_is_asked_once(write) -> None:
    first = write("a.jsonl", {"turns": ["one"]}, {"turns": ["one"]})
    second = write("b.jsonl", {"turns": ["one"]}, {"turns": ["two"]})
    assert len(read_prompts([first, second, first])) == 2


def test_the_order_is_a_matter_of_the_contents_alone(write) -> None:
    rows = [{"turns": [str(n)]} for n in range(30)]
    first, second = write("a.jsonl", *rows), write("b.jsonl", *rows[::-1])
    texts = [[prompt.turns for prompt in read_prompts([file])] for file in (first, second)]
    assert texts[0] == texts[1] != [(str(n),) for n in range(30)]


def test_a_limit_takes_prompts_from_all_over_each_file(write) -> None:
    rows = [{"turns": [f"{n:02d}"]} for n in range(10)]
    prompts = read_prompts([write("a.jsonl", *rows), write("b.jsonl", {"turns": ["x"]})], limit=3)
    assert sorted(prompt.turns[0] for prompt in prompts) == ["00", "03", "06", "x"]


def test_prompts_that_share_a_turn_with_an_excluded_file_are_dropped(write) -> None:
    asked = write(
        "a.jsonl",
        {"turns": ["one"]},
        {"turns": ["new", "  of\nthe test "]},
        {"turns": ["two"]},
    )
    tests = write(
        "test.jsonl", {"turns": ["of the test"]}, {"messages": [{"role": "user", "content": "two"}]}
    )
    assert [prompt.turns for prompt in read_prompts([asked], exclude=[tests])] == [("one",)]
    with pytest.raises(TrainingError, match="--exclude"):
        read_prompts([tests], exclude=[tests])


def test_the_held_out_share_is_about_what_was_asked_for_and_always_the_same(write) -> None:
    prompts = [Prompt("a", turns=(f"question {n}",)) for n in range(2000)]
    held_out = {prompt.id for prompt in prompts if prompt.held_out(0.1)}
    assert 150 < len(held_out) < 250
    assert held_out <= {prompt.id for prompt in prompts if prompt.held_out(0.2)}
    assert not any(prompt.held_out(0.0) for prompt in prompts)
    assert all(prompt.held_out(1.0) for prompt in prompts)


def test_prompts_that_begin_alike_are_held_out_together() -> None:
    for n in range(50):
        first = Prompt("a", turns=(f"question {n}", "why?"))
        second = Prompt("b", turns=(f" question  {n}\n",))
        assert first.held_out(0.5) == second.held_out(0.5)


def test_the_digest_tells_prompts_and_categories_apart() -> None:
    prompts = [Prompt("a", turns=("one",)), Prompt("a", text="one"), Prompt("b", turns=("one",))]
    assert len({digest([prompt]) for prompt in prompts}) == 3
    assert len({prompt.id for prompt in prompts}) == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "no prompt"),
        ("[]", "no prompt"),
        ('{"turns": "one"}', "no prompt"),
        ('{"turns": [1]}', "no prompt"),
        ("{}", "0 of them"),
        ('{"turns": ["a"], "text": "b"}', "2 of them"),
        ('{"turns": []}', "empty"),
        ('{"turns": ["a", " "]}', "empty"),
        ('{"text": ""}', "empty"),
        ('{"messages": []}', "no user message"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "no user message"),
        ('{"messages": [{"role": "tool", "content": "a"}]}', "'tool'"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "not all text"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(write, line: str, words: str) -> None:
    with pytest.raises(TrainingError, match=rf"line 2 of .*a\.jsonl.*{words}"):
        read_prompts([write("a.jsonl", {"turns": ["fine"]}, line)])


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_file_without_prompts_is_named(write, name: str) -> None:
    with pytest.raises(TrainingError, match=rf"{name} has no prompts"):
        read_prompts([write(name, " ", "")])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"nothing\.jsonl"):
        read_prompts([tmp_path / "nothing.jsonl"])
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(TrainingError, match=r"latin\.txt is no UTF-8"):
        read_prompts([tmp_path / "latin.txt"])
