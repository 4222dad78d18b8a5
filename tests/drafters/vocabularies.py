"""Small vocabularies of the kinds that models have, and model folders that use them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from outrider.drafters.translation import Translation
from outrider.text import HFTokenizer

WORDS = ("ab", "abc", "cde", " the", " quick", "\n\n", "é", "日本")


def byte_level_json(
    words: Sequence[str] = WORDS,
    special: Sequence[str] = ("<|end|>",),
    *,
    bos: str | None = None,
    reverse: bool = False,
) -> str:
    """Byte-level BPE without merges: the 256 bytes, then `words`, then special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    strings = [*alphabet, *(splitter.pre_tokenize_str(word)[0][0] for word in words)]
    if reverse:
        strings.reverse()
    tokenizer = Tokenizer(models.BPE({string: i for i, string in enumerate(strings)}, []))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    if bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=None, special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return str(tokenizer.to_str())


def byte_level(words: Sequence[str] = WORDS, **options: object) -> HFTokenizer:
    return HFTokenizer(byte_level_json(words, **options))  # type: ignore[arg-type]


def pieces(words: Sequence[str] = ("▁the", "▁", "a", "b", "ab", "é"), *, fallback: bool = True):
    """SentencePiece's form: three special tokens, the bytes if they are there, then `words`."""
    strings = ["<unk>", "<s>", "</s>"]
    strings += [f"<0x{byte:02X}>" for byte in range(256)] if fallback else []
    strings += words
    tokenizer = Tokenizer(
        models.BPE(
            {string: i for i, string in enumerate(strings)},
            [],
            unk_token="<unk>",  # noqa: S106 # a piece of vocabulary, no password
            byte_fallback=fallback,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return HFTokenizer(tokenizer.to_str())


def token_id(tokenizer: HFTokenizer, text: str | bytes) -> int:
    """The highest id of a token that stands for this."""
    data = text.encode() if isinstance(text, str) else text
    return max(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == data)


def said(tokenizer: HFTokenizer, token_ids: Sequence[int]) -> bytes:
    """The bytes that ids of a tokenizer stand for."""
    return b"".join(tokenizer.token_bytes(i) or b"" for i in token_ids)


def tiny_translation(target_ids: Sequence[int], *, size: int) -> Translation:
    """For a target whose ids below 26 are letters and whose others are pairs of letters.

    The draft has the ids given, -1 for an id without a meaning; all letters must be among them.
    """

    def token_bytes(i: int) -> bytes:
        return bytes([97 + i]) if i < 26 else bytes([97 + i - 26, 97 + i - 25])

    own = torch.full((size,), -1).numpy()
    for draft_id, target_id in enumerate(target_ids):
        if target_id >= 0:
            own[target_id] = draft_id
    words = {token_bytes(i): int(own[i]) for i in range(size) if own[i] >= 0}
    return Translation(torch.tensor(target_ids).numpy(), own, words=words, token_bytes=token_bytes)


def write_model(
    folder: Path,
    tokenizer_json: str,
    *,
    vocab_size: int,
    rows: Sequence[int] | None = None,
    eos: int | None = None,
    config_eos: int | None = None,
) -> Path:
    """A tiny random Llama; always the same but for its vocabulary.

    Args:
        vocab_size: rows of the whole model.
        rows: those that are kept, in this order; all if None. -1 repeats the first.
        eos: in generation_config.json.
        config_eos: in config.json.
    """
    draw = torch.Generator().manual_seed(5)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw) * 0.3

    kept = torch.tensor(range(vocab_size) if rows is None else rows).clamp(min=0)
    tensors = {
        "model.embed_tokens.weight": random(vocab_size, 32)[kept],
        "lm_head.weight": 3 * random(vocab_size, 32)[kept],
        "model.norm.weight": torch.ones(32),
    }
    for index in range(2):
        layer = f"model.layers.{index}."
        tensors |= {
            f"{layer}input_layernorm.weight": torch.ones(32),
            f"{layer}post_attention_layernorm.weight": torch.ones(32),
            f"{layer}self_attn.q_proj.weight": random(32, 32),
            f"{layer}self_attn.k_proj.weight": random(16, 32),
            f"{layer}self_attn.v_proj.weight": random(16, 32),
            f"{layer}self_attn.o_proj.weight": random(32, 32),
            f"{layer}mlp.gate_proj.weight": random(48, 32),
            f"{layer}mlp.up_proj.weight": random(48, 32),
            f"{layer}mlp.down_proj.weight": random(32, 48),
        }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": kept.numel(),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "eos_token_id": config_eos,
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tokenizer_json)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    return folder
