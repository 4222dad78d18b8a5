import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from outrider.errors import RequestError
from outrider.text import ChatTemplate
from outrider.text.chat import MAX_PROMPT_CHARS

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- generation %}{{ message.content }}{% endgeneration %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = """{% set loop_messages = messages %}
{%- set ns = namespace(seen=0) %}
{% for message in loop_messages %}
    {% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'
        + message['content'] | trim + '<|eot_id|>' %}
    {% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
    {%- set ns.seen = ns.seen + 1 %}
    {{ content }}
    {% if ns.seen > 50 %}{% break %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif
%}"""

MISTRAL = """{{ bos_token }}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- if message['role'] == 'user' %}{{ ' [INST] ' + message['content'] + ' [/INST]' }}
{%- else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"""

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": 'Hi <b>&amp;</b> "you" 😀\n  x '}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "  two\n"},
        {"role": "user", "content": "three"},
    ],
]
WITH_SYSTEM: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, *CONVERSATIONS[0]]


def by_transformers(source: str, messages: list[dict[str, Any]], **extra: Any) -> str:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE({"<s>": 0, "</s>": 1}, [])), **SPECIAL
    )
    tokenizer.chat_template = source
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **extra))


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("messages", [*CONVERSATIONS, WITH_SYSTEM])
@pytest.mark.parametrize("source", [CHATML, LLAMA3, MISTRAL])
def test_a_template_renders_as_in_transformers(
    source: str, messages: list[dict[str, Any]], add_generation_prompt: bool
) -> None:
    if source is MISTRAL and messages is WITH_SYSTEM:
        messages = CONVERSATIONS[1]  # the template knows no system messages
    expected = by_transformers(source, messages, add_generation_prompt=add_generation_prompt)
    template = ChatTemplate(source, SPECIAL)
    assert template.render(messages, add_generation_prompt=add_generation_prompt) == expected


@pytest.mark.parametrize("messages", [*CONVERSATIONS, WITH_SYSTEM])
def test_the_template_of_smollm2_renders_as_in_transformers(
    smollm2_folder: Path, messages: list[dict[str, Any]]
) -> None:
    config = json.loads((smollm2_folder / "tokenizer_config.json").read_text())
    source = config["chat_template"]
    expected = by_transformers(source, messages, add_generation_prompt=True)
    assert ChatTemplate(source, SPECIAL).render(messages) == expected
    assert "<|im_start|>assistant\n" in expected


def test_tools_and_other_variables_reach_the_template() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "ü <x>"}}]
    expected = by_transformers(CHATML, CONVERSATIONS[0], tools=tools)
    template = ChatTemplate(CHATML, SPECIAL)
    rendered = template.render(CONVERSATIONS[0], add_generation_prompt=False, tools=tools)
    assert rendered == expected
    assert "ü <x>" in rendered


def test_the_template_may_ask_for_the_date() -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }}", {})
    assert template.render([]) == str(datetime.now().year)


def test_a_refusal_by_the_template_is_passed_on_in_its_words() -> None:
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        ChatTemplate(MISTRAL, SPECIAL).render([{"role": "assistant", "content": "x"}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ messages[0].missing.deeper }}", "missing"),
        ("{{ 'a' + 1 }}", "str"),
        ("{{ 1 / 0 }}", "division"),
        ("{% for i in range(10**9) %}x{% endfor %}", "powers"),
        ("{% for i in range(1000000000) %}x{% endfor %}", "Range too big"),
        ("{{ 'a' * 999999999 }}", "too long"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_whatever_goes_wrong_in_a_template_is_one_line(source: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])
    assert "\n" not in str(caught.value)


def test_a_template_without_end_is_cut_off() -> None:
    piece = "x" * 20_000
    source = "{% for i in range(99999) %}" + piece + "{% endfor %}"
    with pytest.raises(RequestError, match=f"{MAX_PROMPT_CHARS:,}"):
        ChatTemplate(source, {}).render([])


def test_numbers_are_multiplied_as_usual() -> None:
    assert ChatTemplate("{{ 100000 * 100000 }} {{ '-' * 3 }}", {}).render([]) == "10000000000 ---"


def test_a_caller_cannot_change_messages_by_a_template() -> None:
    with pytest.raises(RequestError, match="unsafe"):
        ChatTemplate("{{ messages.append(1) }}", {}).render([])


def test_a_caller_cannot_replace_the_messages_by_a_variable() -> None:
    with pytest.raises(RequestError, match="messages"):
        ChatTemplate("{{ messages }}", {}).render([], **{"messages": []})


def test_a_broken_template_is_reported_when_it_is_used() -> None:
    template = ChatTemplate("{% if %}", {})
    assert not template.available
    with pytest.raises(RequestError, match="compiled"):
        template.render([])


def test_a_model_without_a_template_points_to_plain_completions() -> None:
    with pytest.raises(RequestError, match="/v1/completions") as caught:
        ChatTemplate(None, {}).render([])
    assert caught.value.code == "no_chat_template"
