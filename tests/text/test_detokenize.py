import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from outrider.text import HFTokenizer
from outrider.text.detokenize import TokenBytes, WindowDetokenizer

ids = st.lists(st.integers(0, 2**31), max_size=60)


@pytest.fixture(scope="session")
def smollm2_text(smollm2_folder: Path) -> HFTokenizer:
    return HFTokenizer((smollm2_folder / "tokenizer.json").read_text())


@pytest.fixture(scope="session")
def smollm2_library(smollm2_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))


def streamed(tokenizer: HFTokenizer, token_ids: Sequence[int]) -> str:
    detokenizer = tokenizer.detokenizer()
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    return "".join(pieces) + detokenizer.flush()


@given(st.data())
def test_random_ids_of_a_real_vocabulary_stream_to_what_the_library_decodes(
    smollm2_text: HFTokenizer, smollm2_library: Tokenizer, data: st.DataObject
) -> None:
    token_ids = data.draw(st.lists(st.integers(0, smollm2_text.vocab_size - 1), max_size=60))
    assert streamed(smollm2_text, token_ids) == smollm2_library.decode(token_ids)


@given(st.text())
def test_any_text_comes_back_from_a_real_vocabulary(smollm2_text: HFTokenizer, text: str) -> None:
    # This vocabulary drops the few bytes, such as most control characters, that it has no token
    # for.
    table = smollm2_text._token_bytes
    assert table is not None
    known = {bytes_[0] for bytes_ in table.by_id if len(bytes_) == 1}
    text = "".join(char for char in text if known.issuperset(char.encode()))
    assert streamed(smollm2_text, smollm2_text.encode(text, add_special_tokens=False)) == text


@given(st.data())
def test_random_bytes_stream_to_what_the_library_decodes(
    byte_level: HFTokenizer, data: st.DataObject
) -> None:
    token_ids = data.draw(st.lists(st.integers(0, byte_level.vocab_size - 1), max_size=40))
    assert streamed(byte_level, token_ids) == byte_level._backend.decode(token_ids)


@given(st.text())
def test_any_text_comes_back_from_pieces_with_byte_fallback(pieces: HFTokenizer, text: str) -> None:
    token_ids = pieces.encode(text, add_special_tokens=False)
    library = pieces._backend.decode(token_ids)
    assert streamed(pieces, token_ids) == library


@given(st.data())
def test_pieces_without_broken_characters_stream_to_what_the_library_decodes(
    pieces: HFTokenizer, data: st.DataObject
) -> None:
    token_ids = data.draw(st.lists(st.integers(0, pieces.vocab_size - 1), max_size=40))
    library = pieces._backend.decode(token_ids)
    ours = streamed(pieces, token_ids)
    # The library gives up a whole run of byte tokens for one broken character; we lose that one
    # alone.
    if "\ufffd" not in library:
        assert ours == library
    assert ours == pieces.decode(token_ids)


@given(ids)
def test_decoding_at_once_equals_streaming(byte_level: HFTokenizer, token_ids: list[int]) -> None:
    token_ids = [token_id % (byte_level.vocab_size + 20) for token_id in token_ids]
    assert byte_level.decode(token_ids) == streamed(byte_level, token_ids)


@given(st.data())
def test_a_decoder_of_any_kind_streams_to_what_the_library_decodes(
    word_pieces: HFTokenizer, data: st.DataObject
) -> None:
    token_ids = data.draw(st.lists(st.integers(0, word_pieces.vocab_size - 1), max_size=40))
    assert streamed(word_pieces, token_ids) == word_pieces._backend.decode(token_ids)


@pytest.mark.parametrize("text", ["😀", "👨‍👩‍👧", "日本語", "naïve"])
def test_no_replacement_character_is_shown_within_a_character(
    byte_level: HFTokenizer, pieces: HFTokenizer, text: str
) -> None:
    for tokenizer in (byte_level, pieces):
        detokenizer = tokenizer.detokenizer()
        shown = [detokenizer.push(i) for i in tokenizer.encode(text, add_special_tokens=False)]
        assert "\ufffd" not in "".join(shown)
        assert "".join(shown) == text
        assert detokenizer.flush() == ""


def test_a_character_is_shown_with_its_last_byte_and_not_later(pieces: HFTokenizer) -> None:
    detokenizer = pieces.detokenizer()
    byte_ids = [3 + byte for byte in "😀".encode()]
    assert [detokenizer.push(token_id) for token_id in byte_ids] == ["", "", "", "😀"]


def test_an_unfinished_character_becomes_a_replacement_character_at_the_end_only(
    byte_level: HFTokenizer,
) -> None:
    first_half = byte_level.encode("é", add_special_tokens=False)[:1]
    table = TokenBytes.read(byte_level._backend.to_str(), byte_level.token_strings, frozenset())
    assert table is not None
    if len(table.by_id[first_half[0]]) == 2:  # é is one token here: take its first byte's token
        first_half = [byte_level.token_strings.index("Ã")]
    detokenizer = byte_level.detokenizer()
    assert detokenizer.push(first_half[0]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_a_long_run_of_invalid_bytes_is_not_held_back(pieces: HFTokenizer) -> None:
    detokenizer = pieces.detokenizer()
    shown = "".join(detokenizer.push(3 + 0xFF) for _ in range(100))
    assert shown == "\ufffd" * 100


def test_special_tokens_have_no_text_unless_asked_for(byte_level: HFTokenizer) -> None:
    token_ids = byte_level.encode("a<|end|>b", add_special_tokens=False)
    assert byte_level.decode(token_ids) == "ab"
    assert byte_level.decode(token_ids, skip_special_tokens=False) == "a<|end|>b"


def test_an_added_token_with_a_space_keeps_its_text(byte_level: HFTokenizer) -> None:
    assert byte_level.decode(byte_level.encode("<tool call>", add_special_tokens=False)) == (
        "<tool call>"
    )


def test_ids_outside_of_the_vocabulary_have_no_text(byte_level: HFTokenizer) -> None:
    assert byte_level.decode([byte_level.vocab_size, 10**6, -1]) == ""


def test_a_text_of_its_own_loses_the_space_that_its_first_piece_carries(
    pieces: HFTokenizer,
) -> None:
    the = pieces.token_strings.index("▁the")
    assert pieces.decode([the, the]) == "the the"


def test_a_continued_text_keeps_the_space_of_its_first_piece(pieces: HFTokenizer) -> None:
    the = pieces.token_strings.index("▁the")
    detokenizer = pieces.detokenizer([the])
    assert detokenizer.push(the) == " the"


def test_a_prompt_of_special_tokens_alone_is_no_text_to_continue(pieces: HFTokenizer) -> None:
    the = pieces.token_strings.index("▁the")
    detokenizer = pieces.detokenizer([1])
    assert detokenizer.push(the) == "the"


def test_a_character_begun_by_the_prompt_is_completed(pieces: HFTokenizer) -> None:
    *begun, last = (3 + byte for byte in "é".encode())
    detokenizer = pieces.detokenizer(begun)
    assert detokenizer.push(last) == "é"


def test_a_continued_text_of_words_keeps_its_space(word_pieces: HFTokenizer) -> None:
    the, cat = word_pieces.encode("the cat", add_special_tokens=False)
    detokenizer = word_pieces.detokenizer([the])
    assert detokenizer.push(cat) + detokenizer.flush() == " cat"


def test_a_window_holds_replacement_characters_for_eight_tokens_at_most() -> None:
    detokenizer = WindowDetokenizer(lambda token_ids: "\ufffd" * len(token_ids))
    shown = [detokenizer.push(0) for _ in range(8)]
    assert shown == [""] * 7 + ["\ufffd" * 8]


@pytest.mark.parametrize("kind", ["byte_level", "pieces", "word_pieces"])
def test_the_cost_of_a_token_does_not_grow_with_the_output(
    kind: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: HFTokenizer = request.getfixturevalue(kind)
    detokenizer = tokenizer.detokenizer()

    def seconds_for(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            detokenizer.push(5)
        return time.perf_counter() - start

    early = min(seconds_for(300) for _ in range(5))
    seconds_for(20_000)
    late = min(seconds_for(300) for _ in range(5))
    assert late < 5 * early


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
        {
            "type": "Sequence",
            "decoders": [{"type": "Strip", "content": " ", "start": 1, "stop": 0}],
        },
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "ab"}, "content": "c"},
                {"type": "Fuse"},
            ],
        },
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 0, "stop": 1},
            ],
        },
    ],
)
def test_decoders_whose_tokens_are_no_fixed_bytes_get_no_table(decoder: object) -> None:
    assert TokenBytes.read(json.dumps({"decoder": decoder}), ["a"], frozenset()) is None


@settings(max_examples=20)
@given(st.sampled_from(["</s>", "the", "日本", "x"]))
def test_a_chain_without_strip_keeps_the_first_space(text: str) -> None:
    chain = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"}]
    table = TokenBytes.read(
        json.dumps({"decoder": {"type": "Sequence", "decoders": chain}}), [f"▁{text}"], frozenset()
    )
    assert table is not None
    assert (table.by_id[0].decode(), table.leading_spaces) == (f" {text}", 0)
