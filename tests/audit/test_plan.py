"""Plans and prompt files: what they hold, and what they refuse."""

from __future__ import annotations

import pytest

from outrider.audit import AuditPlan, Prompt, load_prompts
from outrider.errors import ConfigError


def test_a_prompt_file_may_hold_texts_ids_and_chats(tmp_path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(
        '{"prompt": "Hi", "name": "greeting"}\n\n{"token_ids": [0, 1]}\n'
        '{"turns": ["One?", "Two?"], "category": "x"}\n'
    )
    assert load_prompts(file) == (
        Prompt("greeting", "Hi"),
        Prompt("line 3", (0, 1)),
        Prompt("line 4", messages=({"role": "user", "content": "One?"},)),
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"prompt": "a"}\n{"text": "b"}', "line 2 of FILE has 0 of prompt, token_ids and turns"),
        ('{"prompt": "a", "token_ids": [1]}', "line 1 of FILE has 2 of"),
        ('{"token_ids": [-1]}', "line 1 of FILE is no prompt"),
        ("nonsense", "line 1 of FILE is no prompt"),
        ("", "FILE has 0 prompts"),
    ],
)
def test_a_bad_prompt_file_is_refused_by_line(tmp_path, content, complaint) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError, match=complaint.replace("FILE", str(file))):
        load_prompts(file)


def test_a_missing_prompt_file_is_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: No such file"):
        load_prompts(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"tokens": 4, "generate": 3}, "generate at least as many"),
        ({"baseline": "http://b", "speculation": {"drafter": "ngram"}}, "drafter"),
        ({"params": {"seed": 1}}, "seed"),
        ({"prompts": ()}, "at least one prompt"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, complaint) -> None:
    with pytest.raises(ConfigError, match=complaint):
        AuditPlan("http://a", **settings)


def test_there_are_tables_enough_for_every_prompt() -> None:
    many = tuple(Prompt(str(index), "x") for index in range(99))
    assert AuditPlan("http://a", many, alpha=0.01).tables == 100_000


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(AuditPlan("http://a", api_key="secret"))
