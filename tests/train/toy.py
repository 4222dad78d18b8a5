"""A whole toy target: a random Llama with a byte-level tokenizer and a chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.config import Settings, load_settings
from outrider.engine import Lane
from outrider.targets import Target, create_target

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = [("e", "r"), ("i", "n"), ("a", "n"), ("o", "n"), ("u", "s"), ("us", "er"), ("Ġ", "t")]
VOCAB = 256 + len(MERGES) + 2
CONTEXT = 256


def toy_tokenizer() -> str:
    """Contents of a `tokenizer.json`: all bytes, a few merges, two special tokens."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + [a + b for a, b in MERGES]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([IM_START, IM_END])
    text: str = tokenizer.to_str()
    return text


def write_toy(
    folder: Path, *, seed: int = 0, num_layers: int = 2, template: str | None = CHAT_TEMPLATE
) -> Path:
    """Write the model's folder. Answers end now and then: the end's logit varies more than most."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=VOCAB - 1,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[VOCAB - 1] *= 1.6
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(toy_tokenizer())
    said: dict[str, Any] = {"eos_token": IM_END}
    if template is not None:
        said["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return folder


def toy_settings(folder: Path, **engine: object) -> Settings:
    chosen = {"target": str(folder), "threads": 1, "max_sessions": 4, **engine}
    return load_settings(None, {"engine": chosen})


@contextmanager
def toy_target(folder: Path, **engine: object) -> Iterator[tuple[Target, Lane]]:
    """The target on an engine of its own, in int8, whose results do not hang on company."""
    target, lane = create_target(toy_settings(folder, **engine))
    assert lane is not None
    try:
        yield target, lane
    finally:
        lane.engine.close()
        lane.cache.clear()
