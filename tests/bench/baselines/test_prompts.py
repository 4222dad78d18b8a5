"""Prompts as token ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.bench import Prompt
from outrider.bench.baselines.prompts import encode
from outrider.errors import ConfigError
from outrider.models import load_text_assets
from outrider.text import ChatTemplate, HFTokenizer


def prompt(text: str, *, chat: bool = True) -> Prompt:
    return Prompt("set", 3, "kind", (text,), chat)


def test_a_prompt_is_what_the_gateway_makes_of_a_chat(smollm2_folder: Path) -> None:
    (encoded,) = encode(smollm2_folder, [prompt("Say hello.")], longest=100)
    assets = load_text_assets(smollm2_folder)
    template = ChatTemplate(assets.chat_template, assets.special_tokens)
    text = template.render([{"role": "user", "content": "Say hello."}])
    tokenizer = HFTokenizer(assets.tokenizer_json)
    assert (encoded.source, encoded.index) == ("set", 3)
    assert tokenizer.decode(encoded.token_ids, skip_special_tokens=False) == text
    assert "Say hello." in text


def test_a_text_to_continue_gets_no_template(smollm2_folder: Path) -> None:
    (encoded,) = encode(smollm2_folder, [prompt("Once upon", chat=False)], longest=100)
    tokenizer = HFTokenizer(load_text_assets(smollm2_folder).tokenizer_json)
    assert tokenizer.decode(encoded.token_ids) == "Once upon"


def test_a_prompt_that_leaves_no_room_for_its_answer_is_refused(smollm2_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"prompt 3 of set has \d+ tokens, more than the 20"):
        encode(smollm2_folder, [prompt("word " * 40)], longest=20)
