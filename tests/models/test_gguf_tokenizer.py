import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from outrider.errors import CorruptModel, UnsupportedModel
from outrider.models.gguf_tokenizer import build_tokenizer
from outrider.text import HFTokenizer

SPACE = "\u2581"


def tokenizer_of(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(build_tokenizer(metadata).tokenizer_json)


def all_bytes(pre: str) -> Tokenizer:
    """A vocabulary of single bytes and no useful merge: its tokens show how text was split."""
    alphabet = [chr(c) for c in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*alphabet, "zz"],
        "tokenizer.ggml.merges": ["z z"],
    }
    return tokenizer_of(metadata)


def split(pre: str, text: str) -> list[str]:
    splitter = all_bytes(pre).pre_tokenizer
    assert splitter is not None
    return [word for word, _ in splitter.pre_tokenize_str(text)]


@pytest.fixture(scope="session")
def smollm2_text(smollm2_folder: Path) -> HFTokenizer:
    return HFTokenizer((smollm2_folder / "tokenizer.json").read_text())


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "it's 1234 a  b", ["it", "'s", "Ġ1234", "Ġa", "Ġ", "Ġb"]),
        ("default", "x12", ["x", "12"]),
        ("smollm", "it's 1234", ["it", "'s", "Ġ", "1", "2", "3", "4"]),
        ("starcoder", "x12", ["x", "1", "2"]),
        ("qwen2", "IT'S 1234\n\n x", ["IT", "'S", "Ġ", "1", "2", "3", "4", "ĊĊ", "Ġx"]),
        ("qwen2", "(foo) bar!\n", ["(foo", ")", "Ġbar", "!Ċ"]),
        ("llama-bpe", "IT'S 12345", ["IT", "'S", "Ġ", "123", "45"]),
        ("llama3", "a  b", ["a", "Ġ", "Ġb"]),
    ],
)
def test_text_is_split_as_by_the_original_tokenizers(
    pre: str, text: str, expected: list[str]
) -> None:
    assert split(pre, text) == expected


def test_merges_are_applied_within_words(gpt2_metadata: dict[str, Any]) -> None:
    assert tokenizer_of(gpt2_metadata).encode("abc ab12").tokens == [
        "abc",
        "\u0120",
        "ab",
        "1",
        "2",
    ]


def test_control_tokens_are_special_and_others_that_users_defined_are_not(
    gpt2_metadata: dict[str, Any],
) -> None:
    tokenizer = tokenizer_of(gpt2_metadata)
    encoded = tokenizer.encode("a<|b|><tool>b")
    assert encoded.ids[1:3] == [1, 2]
    assert tokenizer.decode(encoded.ids) == "a<tool>b"


def test_strings_that_fill_unused_ids_are_no_tokens(gpt2_metadata: dict[str, Any]) -> None:
    assert tokenizer_of(gpt2_metadata).token_to_id("[PAD24]") is None


def test_the_configuration_names_special_tokens_and_ends(gpt2_metadata: dict[str, Any]) -> None:
    built = build_tokenizer(gpt2_metadata | {"tokenizer.ggml.eot_token_id": 0})
    named = [built.config[name] for name in ("bos_token", "eos_token")]
    assert named == ["<|a|>", "<|b|>"]
    assert built.config["chat_template"] == "{{ messages }}"
    assert built.config["add_bos_token"] is False
    assert built.generation_config == {"eos_token_id": [0, 1], "bos_token_id": 0}


@pytest.mark.parametrize(
    ("pre", "says", "expected"),
    [
        ("smollm", None, False),
        ("smollm", True, True),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
    ],
)
def test_a_beginning_is_added_where_the_model_wants_one(
    gpt2_metadata: dict[str, Any], pre: str, says: bool | None, expected: bool
) -> None:
    metadata = gpt2_metadata | {"tokenizer.ggml.pre": pre}
    if says is not None:
        metadata["tokenizer.ggml.add_bos_token"] = says
    encoded = tokenizer_of(metadata).encode("ab", add_special_tokens=True)
    assert (encoded.ids[0] == 0) is expected


def sentencepiece(**changes: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = {
        f"{SPACE}the": -1.0,
        "he": -2.0,
        "th": -3.0,
        f"{SPACE}t": -4.0,
        **{letter: -10.0 - i for i, letter in enumerate([SPACE, *"tehx"])},
    }
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, *pieces],
        "tokenizer.ggml.scores": [0.0] * len(tokens) + list(pieces.values()),
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **changes,
    }


def test_pieces_are_merged_by_score() -> None:
    # "he" scores above "th", so "the" becomes t + he; the whole word is reached through it.
    encoded = tokenizer_of(sentencepiece()).encode("the xthe", add_special_tokens=False)
    assert encoded.tokens == [f"{SPACE}the", SPACE, "x", "t", "he"]


def test_pieces_begin_with_the_beginning_of_text_by_default() -> None:
    assert tokenizer_of(sentencepiece()).encode("the").ids[0] == 1


def test_characters_without_a_piece_fall_back_to_bytes_and_come_back() -> None:
    tokenizer = tokenizer_of(sentencepiece())
    encoded = tokenizer.encode("t 😀", add_special_tokens=False)
    assert encoded.tokens[-4:] == ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    assert tokenizer.decode(encoded.ids) == "t 😀"


def test_without_a_space_prefix_the_text_is_taken_as_it_is() -> None:
    tokenizer = tokenizer_of(sentencepiece(**{"tokenizer.ggml.add_space_prefix": False}))
    encoded = tokenizer.encode("the", add_special_tokens=False)
    assert encoded.tokens == ["t", "he"]
    assert tokenizer.decode(tokenizer.encode(" the").ids) == " the"


@given(st.text(alphabet=f"teh x{SPACE}é😀日\n"))
def test_text_comes_back_from_pieces(text: str) -> None:
    tokenizer = HFTokenizer(PIECES)
    decoded = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
    assert decoded == text.replace(SPACE, " ")


PIECES = build_tokenizer(sentencepiece()).tokenizer_json


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello, world!", ["Hello", ",", "Ġworld", "!"]),
        ("In 2024", ["In", "Ġ", "2", "0", "2", "4"]),
        ("<|im_start|>user\n", ["<|im_start|>", "user", "Ċ"]),
    ],
)
def test_smollm2_text_becomes_the_tokens_of_the_original(
    smollm2_text: HFTokenizer, text: str, tokens: list[str]
) -> None:
    ids = smollm2_text.encode(text, add_special_tokens=False)
    assert [smollm2_text.token_strings[token_id] for token_id in ids] == tokens


@pytest.mark.parametrize(
    "text",
    [
        "😀👨‍👩‍👧 日本語 中文 한국어 يوم",
        "def f(x):\n\treturn [x ** 2 for _ in range(10)]  # ok\n\n\n",
        "   spaces    and\ttabs \r\n",
        "0123456789 3.14159 1e-10",
        "it's I'LL won't",
    ],
)
def test_smollm2_text_comes_back(smollm2_text: HFTokenizer, text: str) -> None:
    assert smollm2_text.decode(smollm2_text.encode(text, add_special_tokens=False)) == text


def test_smollm2_splits_as_its_own_tokenizer_file_does(smollm2_folder: Path) -> None:
    tokenizer = json.loads((smollm2_folder / "tokenizer.json").read_text())
    assert tokenizer["pre_tokenizer"] == {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            },
        ],
    }
    assert len(tokenizer["added_tokens"]) == 17


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"tokenizer.ggml.model": "t5"}, UnsupportedModel, "'t5'"),
        ({"tokenizer.ggml.pre": "viking"}, UnsupportedModel, "'viking'"),
        ({"tokenizer.ggml.merges": []}, CorruptModel, "without merges"),
        ({"tokenizer.ggml.merges": ["a b c"]}, CorruptModel, "not two tokens"),
        ({"tokenizer.ggml.merges": ["a z"]}, CorruptModel, "contradicts itself"),
        ({"tokenizer.ggml.tokens": []}, CorruptModel, "no vocabulary"),
        ({"tokenizer.ggml.token_type": [1]}, CorruptModel, "1 token types"),
        ({"tokenizer.ggml.eos_token_id": 99}, CorruptModel, "eos_token_id is 99"),
    ],
)
def test_what_cannot_be_built_exactly_is_refused_by_name(
    gpt2_metadata: dict[str, Any], change: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        build_tokenizer(gpt2_metadata | change)


def test_pieces_without_scores_are_refused() -> None:
    with pytest.raises(CorruptModel, match="score"):
        build_tokenizer(sentencepiece(**{"tokenizer.ggml.scores": [0.0]}))
