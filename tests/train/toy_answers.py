"""Answers of a made-up target whose next token hangs on the last one alone: quick to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.text import HFTokenizer, fingerprint
from outrider.train.plan import DraftModel, Target
from outrider.train.store import Example, ShardWriter, Source
from tests.train.toy import VOCAB, toy_tokenizer

TOKENIZER = HFTokenizer(toy_tokenizer())
K = 8


def toy_source(**changes: Any) -> Source:
    said: dict[str, Any] = {
        "model_id": "toy",
        "model_hash": "of the toy",
        "vocab_fingerprint": fingerprint(TOKENIZER.token_strings),
        "vocab_size": VOCAB,
        "eos_token_ids": (VOCAB - 1,),
        "dtype": "int8",
        "k": K,
        "holdout": 0.2,
    }
    return Source(**(said | changes))


def toy_example(draw: np.random.Generator, name: str, *, held_out: bool = False) -> Example:
    """A prompt at random, and what the toy says to it."""
    logits = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1)) * 3
    ids = draw.integers(0, VOCAB, int(draw.integers(3, 12))).tolist()
    prompt, rows = len(ids), []
    for _ in range(int(draw.integers(4, 40))):
        rows.append(logits[ids[-1]])
        ids.append(int(rows[-1].argmax()))
    top = torch.stack(rows).topk(K)
    return Example(
        id=name,
        category="toy",
        token_ids=np.array(ids, dtype=np.int32),
        generated=np.arange(len(ids)) >= prompt,
        support_ids=top.indices.numpy().astype(np.int32),
        support_logits=top.values.numpy(),
        logsumexps=torch.stack(rows).logsumexp(1, keepdim=True).numpy(),
        held_out=held_out,
        finish_reasons=("length",),
    )


def write_answers(folder: Path, num: int = 40, *, seed: int = 0, **changes: Any) -> Path:
    """A folder of answers, a fifth of them held out."""
    draw = np.random.default_rng(seed)
    examples = [toy_example(draw, str(i), held_out=i % 5 == 0) for i in range(num)]
    writer = ShardWriter(folder, toy_source(**changes))
    for start in range(0, num, 16):
        writer.write(start // 16, examples[start : start + 16])
    return folder


def toy_draft(*, vocab_size: int = VOCAB) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=256,
            tie_word_embeddings=True,
        )
    )


def toy_start(_: object = None) -> DraftModel:
    """A first draft, always the same."""
    return DraftModel(toy_draft())


def toy_target(folder: Path, **changes: Any) -> Target:
    said: dict[str, Any] = {
        "model_id": "toy",
        "model_hash": "of the toy",
        "vocab_fingerprint": fingerprint(TOKENIZER.token_strings),
        "tokenizer": TOKENIZER,
        "folder": folder,
        "dtype": "int8",
    }
    return Target(**(said | changes))
