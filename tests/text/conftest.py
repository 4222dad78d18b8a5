"""Tiny tokenizers of the kinds that models use."""

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from outrider.text import HFTokenizer

_WORDS = [
    "the quick brown fox jumps over the lazy dog",
    "def add(a, b):\n    return a + b\n",
    "日本語のテキスト 日本語 😀😀 naïve café",
]


@pytest.fixture(scope="session")
def byte_level() -> HFTokenizer:
    """Byte-level BPE, as GPT-2, Llama 3, Qwen and SmolLM use."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_WORDS, trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False)])
    return HFTokenizer(tokenizer.to_str())


@pytest.fixture(scope="session")
def pieces() -> HFTokenizer:
    """SentencePiece's form with byte fallback, as Llama 2 and Mistral use."""
    strings = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    strings += [*"▁abcdefghijklmnopqrstuvwxyz.,", "▁a", "▁th", "▁the", "th", "日", "本"]
    merges = [("t", "h"), ("▁", "a"), ("▁", "th"), ("▁th", "e")]
    tokenizer = Tokenizer(
        models.BPE(
            {string: token_id for token_id, string in enumerate(strings)},
            merges,
            unk_token="<unk>",  # noqa: S106 # a piece of vocabulary, no password
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return HFTokenizer(tokenizer.to_str())


@pytest.fixture(scope="session")
def word_pieces() -> HFTokenizer:
    """A decoder whose tokens are no fixed bytes: spaces between words, `##` joins to the left."""
    strings = ["[UNK]", "[SEP]", "the", "cat", "sat", "##s", "##ting", "un", "##able", "."]
    tokenizer = Tokenizer(
        models.WordPiece(
            {string: token_id for token_id, string in enumerate(strings)},
            unk_token="[UNK]",  # noqa: S106 # a piece of vocabulary, no password
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens(["[SEP]"])
    return HFTokenizer(tokenizer.to_str())
