"""Folders as the families publish them: from text through the model and back to text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import AutoTokenizer, Gemma2Config, Gemma3TextConfig, Phi3Config, Qwen3Config

from outrider.engine import Chunk, load_model
from outrider.models import load_text_assets, resolve
from outrider.text import ChatTemplate, HFTokenizer

MESSAGES = [
    {"role": "user", "content": "  the cat\n\nsat 12 "},
    {"role": "assistant", "content": "日本 the"},
    {"role": "user", "content": "why?"},
]
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content']"
    " + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
QWEN_TEMPLATE = (
    "{%- set ns = namespace(last=messages|length - 1) %}"
    "{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
    "{%- if message.role == 'user' and message.content is string %}"
    "{%- set ns.last = index %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if '</think>' in message.content %}"
    "{{- message.content.split('</think>')[-1].lstrip('\n') }}"
    "{%- else %}{{- message.content }}{%- endif %}{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
MERGES = [("t", "h"), ("th", "e"), ("c", "a"), ("ca", "t")]


def pieces(special: list[AddedToken], *, prefix: bool) -> Tokenizer:
    """SentencePiece BPE with byte fallback, as Gemma and Phi-3 have it."""
    strings = [token.content for token in special] + BYTES
    strings += [*"▁abcdefghijklmnopqrstuvwxyz?.", "th", "the", "ca", "cat", "▁the", "\n\n"]
    tokenizer = Tokenizer(
        models.BPE(
            {string: index for index, string in enumerate(strings)},
            [*MERGES, ("▁", "the")],
            unk_token="<unk>",  # noqa: S106 - a piece of vocabulary, no password
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    chain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    if prefix:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        chain.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(chain)
    tokenizer.add_special_tokens(special)
    return tokenizer


def gemma_tokenizer() -> Tokenizer:
    names = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
    tokenizer = pieces([AddedToken(name) for name in names], prefix=False)
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 2)]
    )
    return tokenizer


def phi_tokenizer() -> Tokenizer:
    plain = [AddedToken(name) for name in ("<unk>", "<s>", "<|endoftext|>")]
    eating = [
        AddedToken(name, rstrip=True, normalized=False)
        for name in ("<|end|>", "<|user|>", "<|assistant|>")
    ]
    return pieces(plain + eating, prefix=True)


def qwen_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    strings = [*alphabet, "th", "the", "ca", "cat"]
    tokenizer = Tokenizer(
        models.BPE({string: index for index, string in enumerate(strings)}, MERGES)
    )
    tokenizer.normalizer = normalizers.NFC()
    words = Regex(r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in ("<think>", "</think>")])
    return tokenizer


GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8}
FAMILIES: dict[str, tuple[Any, dict[str, Any], Callable[[], Tokenizer], dict[str, Any]]] = {
    "qwen3": (
        Qwen3Config,
        {"head_dim": 16, "eos_token_id": 262},
        qwen_tokenizer,
        {"chat_template": QWEN_TEMPLATE, "eos_token": "<|im_end|>", "bos_token": None},
    ),
    "phi3": (
        Phi3Config,
        {"pad_token_id": 0, "eos_token_id": 2},
        phi_tokenizer,
        {"chat_template": PHI_TEMPLATE, "eos_token": "<|endoftext|>", "bos_token": "<s>"},
    ),
    "gemma2": (
        Gemma2Config,
        GEMMA,
        gemma_tokenizer,
        {"chat_template": GEMMA_TEMPLATE, "eos_token": "<eos>", "bos_token": "<bos>"},
    ),
    "gemma3": (
        Gemma3TextConfig,
        GEMMA,
        gemma_tokenizer,
        {"chat_template": GEMMA_TEMPLATE, "eos_token": "<eos>", "bos_token": "<bos>"},
    ),
}


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path, save_model: Callable[..., None]) -> Path:
    kind, own, make_tokenizer, text = FAMILIES[request.param]
    config = kind(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        **own,
    )
    save_model(config, tmp_path)
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **text}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_a_folder_answers_a_chat_as_transformers_does(
    folder: Path, tmp_path: Path, reference_of: Callable[..., Any]
) -> None:
    model = resolve(str(folder), home=tmp_path / "home")
    assets = load_text_assets(model.path)
    tokenizer = HFTokenizer(assets.tokenizer_json)
    text = ChatTemplate(assets.chat_template, assets.special_tokens).render(MESSAGES)
    prompt = tokenizer.encode(text, add_special_tokens=False)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert prompt == theirs.apply_chat_template(
        MESSAGES, add_generation_prompt=True, return_dict=False
    )

    decoder = load_model(model.path, dtype=torch.float32, device=torch.device("cpu"))
    cache = decoder.new_cache(num_slots=1, max_length=len(prompt) + 12)
    slot = cache.allocate()
    output: list[int] = []
    fed = prompt
    for _ in range(12):
        (logits,) = decoder.forward([Chunk(slot, fed, 1)], cache)
        fed = [int(logits[0].argmax())]
        output += fed
    reference = reference_of(folder)
    expected = reference.generate(
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None
    )
    assert output == expected[0, len(prompt) :].tolist()
    assert tokenizer.decode(prompt) == theirs.decode(prompt, skip_special_tokens=True)
    assert assets.eos_token_ids >= {int(theirs.eos_token_id)}


def test_a_plain_prompt_begins_as_in_transformers(folder: Path) -> None:
    tokenizer = HFTokenizer(load_text_assets(folder).tokenizer_json)
    found = tokenizer.encode("the cat", add_special_tokens=True)
    assert found == AutoTokenizer.from_pretrained(folder)("the cat")["input_ids"]
