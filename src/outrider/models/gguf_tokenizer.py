"""A Hugging Face `tokenizer.json` from the metadata of a GGUF file.

A GGUF keeps the vocabulary and the name of the way in which text is split before merging, not that
way itself. The ways below are those of the models' own `tokenizer.json`; a name that is not among
them is refused, since splitting differently would feed the model tokens that it never saw together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

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

from outrider.errors import CorruptModel, UnsupportedModel

__all__ = ["GGUFTokenizer", "build_tokenizer"]

_QWEN2_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_SPLIT: Final = _QWEN2_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)

_SPACE: Final = "\u2581"


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GGUFTokenizer:
    """A tokenizer in Hugging Face's files.

    Attributes:
        tokenizer_json: contents of `tokenizer.json`.
        config: contents of `tokenizer_config.json`: special tokens and the chat template.
        generation_config: contents of `generation_config.json`: the ids that begin and end a text.
    """

    tokenizer_json: str
    config: dict[str, Any]
    generation_config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The vocabulary as the GGUF gives it."""

    tokens: list[str]
    types: list[int]

    def ids(self, *kinds: _TokenType) -> list[int]:
        return [token_id for token_id, kind in enumerate(self.types) if kind in kinds]

    def by_string(self) -> dict[str, int]:
        """Ids by string, without the strings that a converter made up to fill unused ids."""
        return {
            token: token_id
            for token_id, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind != _TokenType.UNUSED
        }


def build_tokenizer(metadata: Mapping[str, Any]) -> GGUFTokenizer:
    """Build the tokenizer that a GGUF's metadata describes.

    Args:
        metadata: as `engine.read_gguf_header` gives it.

    Raises:
        UnsupportedModel: a kind of tokenizer, or of splitting, that is not known exactly.
        CorruptModel: the vocabulary is missing or contradicts itself.
    """
    kind = metadata.get("tokenizer.ggml.model")
    vocabulary = _vocabulary(metadata)
    named = {
        name: _token_id(metadata, key, vocabulary)
        for name, key in (
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
        )
    }
    match kind:
        case "gpt2":
            pre = metadata.get("tokenizer.ggml.pre", "default")
            tokenizer = _byte_level(metadata, vocabulary, pre)
            add_bos = pre in ("llama-bpe", "llama3", "llama-v3")
        case "llama":
            tokenizer = _sentencepiece(metadata, vocabulary, named["unk_token"])
            add_bos = True
        case _:
            raise UnsupportedModel(
                f"the GGUF has a tokenizer of kind {kind!r}; known are gpt2 (byte-level BPE) and "
                "llama (SentencePiece BPE); use the model's original folder instead"
            )
    tokenizer.add_tokens(
        [
            AddedToken(
                vocabulary.tokens[token_id],
                normalized=False,
                special=vocabulary.types[token_id] == _TokenType.CONTROL,
            )
            for token_id in vocabulary.ids(_TokenType.CONTROL, _TokenType.USER_DEFINED)
        ]
    )
    add_bos = metadata.get("tokenizer.ggml.add_bos_token", add_bos)
    bos = named["bos_token"]
    if add_bos and bos is not None:
        string = vocabulary.tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[string, "$A"], pair=[string, "$A", string, "$B"], special_tokens=[(string, bos)]
        )
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(add_bos and bos is not None),
        **{name: vocabulary.tokens[i] for name, i in named.items() if i is not None},
    }
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    ends = {named["eos_token"], _token_id(metadata, "eot_token_id", vocabulary)}
    generation_config: dict[str, Any] = {
        "eos_token_id": sorted(end for end in ends if end is not None)
    }
    if bos is not None:
        generation_config["bos_token_id"] = bos
    return GGUFTokenizer(tokenizer.to_str(), config, generation_config)


def _byte_level(metadata: Mapping[str, Any], vocabulary: _Vocabulary, pre: str) -> Tokenizer:
    merges = metadata.get("tokenizer.ggml.merges")
    if not merges:
        raise CorruptModel("the GGUF has a gpt2 tokenizer without merges; get the file anew")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise CorruptModel("the GGUF has a merge that is not two tokens; get the file anew")
    normalizer: Any = None
    split: list[Any]
    whole_words_first = False
    match pre:
        case "gpt-2" | "default":
            split = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
        case "smollm" | "starcoder":
            split = [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        case "qwen2":
            normalizer = normalizers.NFC()
            split = _split_by(_QWEN2_SPLIT)
        case "llama-bpe" | "llama3" | "llama-v3":
            split = _split_by(_LLAMA3_SPLIT)
            whole_words_first = True
        case _:
            raise UnsupportedModel(
                f"the GGUF splits text in the way {pre!r}; known are default, gpt-2, llama-bpe, "
                "qwen2, smollm and starcoder; use the model's original folder instead"
            )
    tokenizer = Tokenizer(_model(vocabulary.by_string(), pairs, ignore_merges=whole_words_first))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = split[0] if len(split) == 1 else pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split_by(pattern: str) -> list[Any]:
    return [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


def _sentencepiece(
    metadata: Mapping[str, Any], vocabulary: _Vocabulary, unknown: int | None
) -> Tokenizer:
    """SentencePiece BPE, with the normalizer and decoder that Llama 2's `tokenizer.json` has."""
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(vocabulary.tokens):
        raise CorruptModel(
            "the GGUF has a llama tokenizer without a score for each token; get the file anew"
        )
    tokenizer = Tokenizer(
        _model(
            vocabulary.by_string(),
            _merges(vocabulary, scores),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=len(vocabulary.ids(_TokenType.BYTE)) == 256,
        )
    )
    replace = normalizers.Replace(" ", _SPACE)
    chain = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace])
        chain.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = replace
    tokenizer.decoder = decoders.Sequence(chain)
    return tokenizer


def _merges(vocabulary: _Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """The merges that scores imply: every pair of tokens that makes a token, best score first.

    Among pairs with the same result those of longer first parts come first, as in the conversion of
    SentencePiece models by transformers.
    """
    pieces = {vocabulary.tokens[i]: i for i in vocabulary.ids(_TokenType.NORMAL)}
    found = []
    for piece, token_id in pieces.items():
        pairs = [
            (left, right)
            for cut in range(1, len(piece))
            if (left := piece[:cut]) in pieces and (right := piece[cut:]) in pieces
        ]
        pairs.sort(key=lambda pair: (pieces[pair[0]], pieces[pair[1]]))
        found += [(scores[token_id], len(left), left, right) for left, right in pairs]
    found.sort(key=lambda merge: merge[:2], reverse=True)
    return [(left, right) for _, _, left, right in found]


def _model(vocabulary: dict[str, int], merges: list[Any], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocabulary, merges, **options)
    except (
        Exception
    ) as error:  # the library raises bare Exception, here for a merge of unknown tokens
        raise CorruptModel(
            f"the GGUF's vocabulary contradicts itself ({error}); get the file anew"
        ) from error


def _vocabulary(metadata: Mapping[str, Any]) -> _Vocabulary:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise CorruptModel("the GGUF has no vocabulary; get one that holds its tokenizer")
    types = metadata.get("tokenizer.ggml.token_type", [int(_TokenType.NORMAL)] * len(tokens))
    if len(types) != len(tokens):
        raise CorruptModel(
            f"the GGUF has {len(tokens)} tokens but {len(types)} token types; get the file anew"
        )
    return _Vocabulary(tokens, types)


def _token_id(metadata: Mapping[str, Any], key: str, vocabulary: _Vocabulary) -> int | None:
    token_id = metadata.get(f"tokenizer.ggml.{key}")
    if token_id is None:
        return None
    if not 0 <= token_id < len(vocabulary.tokens):
        raise CorruptModel(
            f"the GGUF's {key} is {token_id}, outside of its {len(vocabulary.tokens)} tokens; "
            "get the file anew"
        )
    return int(token_id)
