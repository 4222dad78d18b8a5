import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import CorruptModel, RequestError
from outrider.text import HFTokenizer, IdTokenizer, create_tokenizer
from outrider.types import TargetInfo


def info(tokenizer_json: str | None) -> TargetInfo:
    return TargetInfo(
        model_id="m",
        model_hash="h",
        vocab_size=5,
        vocab_fingerprint="f",
        eos_token_ids=frozenset({4}),
        context_length=8,
        tokenizer_json=tokenizer_json,
    )


def test_ids_as_text_are_read_and_written() -> None:
    tokenizer = IdTokenizer(5)
    assert tokenizer.encode(" 3 1\n2 ", add_special_tokens=True) == [3, 1, 2]
    assert tokenizer.decode([3, 1, 2]) == "3 1 2"
    assert tokenizer.token_strings == ("0", "1", "2", "3", "4")


@given(st.lists(st.integers(0, 4)))
def test_ids_stream_to_what_they_decode_to(token_ids: list[int]) -> None:
    detokenizer = IdTokenizer(5).detokenizer()
    text = "".join([detokenizer.push(token_id) for token_id in token_ids]) + detokenizer.flush()
    assert text == IdTokenizer(5).decode(token_ids)


def test_ids_that_continue_a_prompt_begin_with_a_space() -> None:
    assert IdTokenizer(5).detokenizer([1]).push(2) == " 2"


@pytest.mark.parametrize("word", ["5", "-1", "two", "1.5", "²", "9" * 5000])
def test_a_word_that_is_no_id_is_refused_by_name(word: str) -> None:
    with pytest.raises(RequestError, match="token id") as caught:
        IdTokenizer(5).encode(f"1 {word}", add_special_tokens=False)
    assert repr(word)[:20] in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_target_without_a_tokenizer_speaks_in_ids() -> None:
    assert create_tokenizer(info(None)).encode("4", add_special_tokens=False) == [4]


def test_a_target_with_a_tokenizer_speaks_in_words(byte_level: HFTokenizer) -> None:
    tokenizer = create_tokenizer(info(byte_level._backend.to_str()))
    assert tokenizer.decode(tokenizer.encode("the fox", add_special_tokens=False)) == "the fox"


def test_a_broken_tokenizer_file_is_named_in_one_line() -> None:
    with pytest.raises(CorruptModel, match=r"tokenizer\.json") as caught:
        HFTokenizer("{}")
    assert "\n" not in str(caught.value)


def test_token_strings_hold_added_tokens_and_none_for_holes(byte_level: HFTokenizer) -> None:
    strings = byte_level.token_strings
    assert strings[0] == "<|end|>"
    assert strings[-1] == "<tool call>"
    assert len(strings) == byte_level.vocab_size


@pytest.mark.parametrize("text", ["the fox", "日本語 😀 naïve", "<tool call>"])
def test_the_bytes_of_tokens_are_those_of_their_text(byte_level: HFTokenizer, text: str) -> None:
    pieces = [
        byte_level.token_bytes(token_id)
        for token_id in byte_level.encode(text, add_special_tokens=False)
    ]
    assert None not in pieces
    assert b"".join(piece or b"" for piece in pieces) == text.encode()


def test_pieces_have_their_leading_space_and_single_bytes_as_bytes(pieces: HFTokenizer) -> None:
    strings = list(pieces.token_strings)
    assert pieces.token_bytes(strings.index("▁the")) == b" the"
    assert pieces.token_bytes(strings.index("<0xE6>")) == b"\xe6"


def test_a_special_token_has_the_bytes_of_its_name(byte_level: HFTokenizer) -> None:
    assert byte_level.token_bytes(0) == b"<|end|>"


@pytest.mark.parametrize("beyond", [-1, 10**6])
def test_an_id_without_a_token_has_no_bytes(byte_level: HFTokenizer, beyond: int) -> None:
    assert byte_level.token_bytes(beyond) is None


def test_tokens_whose_text_depends_on_neighbours_have_no_bytes(word_pieces: HFTokenizer) -> None:
    assert word_pieces.token_bytes(2) is None
    assert IdTokenizer(5).token_bytes(2) is None


def test_special_tokens_in_a_text_are_encoded_as_such(byte_level: HFTokenizer) -> None:
    assert byte_level.encode("a<|end|>", add_special_tokens=False)[-1] == 0


def test_half_a_surrogate_pair_is_refused(byte_level: HFTokenizer) -> None:
    with pytest.raises(RequestError, match="U\\+D83D"):
        byte_level.encode("a\ud83d", add_special_tokens=False)


def test_truncation_and_padding_of_a_tokenizer_file_do_not_apply(byte_level: HFTokenizer) -> None:
    library = byte_level._backend.from_str(byte_level._backend.to_str())
    library.enable_truncation(2)
    library.enable_padding(length=2)
    tokenizer = HFTokenizer(library.to_str())
    assert len(tokenizer.encode("a", add_special_tokens=False)) == 1
    assert len(tokenizer.encode("abcdefgh zyx", add_special_tokens=False)) > 2


def test_other_threads_run_while_a_long_text_is_encoded(smollm2_folder: Path) -> None:
    tokenizer = HFTokenizer((smollm2_folder / "tokenizer.json").read_text())
    text = "some words and 123 numbers, " * 20_000
    thread = threading.Thread(
        target=tokenizer.encode, args=(text,), kwargs={"add_special_tokens": False}
    )
    ticks = 0
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        ticks += 1
    thread.join()
    assert ticks > 20


@pytest.mark.parametrize("text", ["a" * 100_000, " " * 100_000, "1" * 100_000, "😀" * 20_000])
def test_texts_without_a_break_are_encoded_in_reasonable_time(
    smollm2_folder: Path, text: str
) -> None:
    tokenizer = HFTokenizer((smollm2_folder / "tokenizer.json").read_text())
    start = time.perf_counter()
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert time.perf_counter() - start < 5
    assert tokenizer.decode(token_ids) == text
