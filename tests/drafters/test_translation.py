from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.translation import Translation
from outrider.text import HFTokenizer

from .vocabularies import WORDS, byte_level, pieces, said, token_id

TARGET = byte_level(special=("<|end|>", "<|user|>"))
SENTENCE = pieces()


def trimmed_without(*words: str, tokenizer: HFTokenizer = TARGET) -> Translation:
    dropped = {token_id(tokenizer, word) for word in words}
    return Translation.trimmed(
        tokenizer, [i for i in range(tokenizer.vocab_size) if i not in dropped]
    )


def meant(translation: Translation, target_id: int) -> list[int]:
    """What the pieces of a token mean to the target."""
    return translation.target_ids[list(translation.pieces(target_id))].tolist()


def test_a_token_that_a_trimmed_draft_has_is_its_own_piece() -> None:
    translation = trimmed_without(" the")
    for target_id in range(TARGET.vocab_size):
        if target_id != token_id(TARGET, " the"):
            assert meant(translation, target_id) == [target_id]


def test_a_token_that_a_trimmed_draft_lacks_is_spelled_by_as_few_as_say_the_same() -> None:
    words = ("ab", "abc", "cde", "abcde")
    tokenizer = byte_level(words)
    translation = trimmed_without("abcde", tokenizer=tokenizer)
    # The longest beginning, "abc", would take two more.
    assert meant(translation, token_id(tokenizer, "abcde")) == [
        token_id(tokenizer, "ab"),
        token_id(tokenizer, "cde"),
    ]


@given(st.sets(st.sampled_from(range(256, 256 + len(WORDS)))))
def test_the_pieces_of_a_trimmed_draft_say_what_the_token_says(dropped: set[int]) -> None:
    kept = [i for i in range(TARGET.vocab_size) if i not in dropped]
    translation = Translation.trimmed(TARGET, kept)
    for target_id in range(TARGET.vocab_size):
        assert said(TARGET, meant(translation, target_id)) == said(TARGET, [target_id])


texts = st.text(alphabet="abcdeth quick\né日本😀", min_size=1, max_size=6)


@given(st.sets(texts, max_size=8), st.sets(texts, max_size=8))
def test_the_pieces_of_another_tokenizer_say_what_the_token_says(
    ours: set[str], theirs: set[str]
) -> None:
    single = {bytes([byte]).decode("latin-1") for byte in range(128)}
    target = byte_level(sorted(ours - single), reverse=True)
    draft = pieces([word.replace(" ", "▁") for word in sorted(theirs)])
    translation = Translation.between(target, draft)
    for target_id in range(target.vocab_size):
        if target_id not in target.special_ids:
            spelled = translation.pieces(target_id)
            assert said(draft, spelled) == said(target, [target_id])


@given(st.sets(texts, max_size=8), st.sets(texts, max_size=8))
def test_what_may_be_drafted_is_read_as_the_same_single_token(
    ours: set[str], theirs: set[str]
) -> None:
    target = pieces([word.replace(" ", "▁") for word in sorted(ours)])
    draft = pieces([word.replace(" ", "▁") for word in sorted(theirs, reverse=True)])
    translation = Translation.between(target, draft)
    drafted = translation.drafted.tolist()
    meanings = translation.target_ids[drafted].tolist()
    assert meanings == sorted(set(meanings))
    assert [translation.pieces(target_id) for target_id in meanings] == [
        (draft_id,) for draft_id in drafted
    ]


def test_leading_spaces_of_both_kinds_of_tokenizers_are_the_same() -> None:
    translation = Translation.between(TARGET, SENTENCE)
    assert translation.pieces(token_id(TARGET, " the")) == (token_id(SENTENCE, " the"),)
    assert translation.target_ids[token_id(SENTENCE, " the")] == token_id(TARGET, " the")


def test_a_letter_is_preferred_to_the_byte_that_stands_for_it() -> None:
    letter, byte = (SENTENCE.token_strings.index(string) for string in ("a", "<0x61>"))
    translation = Translation.between(TARGET, SENTENCE)
    assert translation.pieces(token_id(TARGET, "a")) == (letter,)
    assert translation.target_ids[byte] == -1


def test_of_two_tokens_for_the_same_bytes_the_lower_id_is_drafted() -> None:
    strings = ["▁a", " a"]  # both decode to " a"
    draft = pieces(strings)
    low, high = (draft.token_strings.index(string) for string in strings)
    translation = Translation.between(byte_level([" a"]), draft)
    assert translation.target_ids[low] == token_id(byte_level([" a"]), " a")
    assert translation.target_ids[high] == -1


def test_special_tokens_mean_only_their_namesakes() -> None:
    draft = byte_level(["<|user|>"], special=("<|end|>", "<|other|>"))
    target = byte_level(["<|other|>"], special=("<|end|>", "<|tool|>"))
    translation = Translation.between(target, draft)
    end, tool = (target.token_strings.index(name) for name in ("<|end|>", "<|tool|>"))
    assert translation.pieces(end) == (draft.token_strings.index("<|end|>"),)
    assert translation.pieces(tool) == ()
    # "<|other|>" is text in the target: it is spelled, not the draft's special token.
    other = token_id(target, "<|other|>")
    assert said(draft, translation.pieces(other)) == b"<|other|>"


def test_a_special_token_that_a_trimmed_draft_lacks_is_left_out() -> None:
    user = TARGET.token_strings.index("<|user|>")
    translation = trimmed_without("<|user|>")
    assert translation.pieces(user) == ()
    assert translation.draft_ids([0, user, 1]) == [0, 1]


def test_ends_of_an_output_mean_each_other() -> None:
    target = byte_level(special=("<|eos|>", "<|eot|>"))
    eos, eot = (target.token_strings.index(name) for name in ("<|eos|>", "<|eot|>"))
    translation = Translation.between(target, SENTENCE, target_ends=[eos, eot], draft_ends=[2])
    assert translation.target_ids[2] == eot
    assert translation.pieces(eot) == translation.pieces(eos) == (2,)


def test_an_end_with_a_namesake_means_that_one() -> None:
    target = byte_level(special=("<|end|>", "<|eot|>"))
    draft = byte_level(special=("<|end|>",))
    end, eot = (target.token_strings.index(name) for name in ("<|end|>", "<|eot|>"))
    (theirs,) = draft.special_ids
    translation = Translation.between(target, draft, target_ends=[end, eot], draft_ends=[theirs])
    assert translation.target_ids[theirs] == end
    assert translation.pieces(eot) == (theirs,)  # to be read, never drafted


def test_an_end_of_the_draft_that_means_nothing_is_never_drafted() -> None:
    translation = Translation.between(TARGET, SENTENCE, draft_ends=[2])
    assert translation.target_ids[2] == -1


def test_a_text_begins_as_the_draft_model_wants_it_once() -> None:
    draft = byte_level(special=("<bos>",), bos="<bos>")
    bos = draft.token_strings.index("<bos>")
    bare = Translation.between(TARGET, draft)
    assert bare.context([1, 2]) == [bos, *bare.draft_ids([1, 2])]
    begun = byte_level(special=("<|start|>",), bos="<|start|>")
    start = begun.token_strings.index("<|start|>")
    translation = Translation.between(begun, draft)
    assert translation.context([start, 1]) == [bos, *translation.draft_ids([1])]


def test_a_token_that_the_draft_cannot_spell_has_no_pieces() -> None:
    draft = pieces(("a", "b"), fallback=False)
    translation = Translation.between(TARGET, draft)
    assert translation.pieces(token_id(TARGET, "ab")) == tuple(
        token_id(draft, letter) for letter in "ab"
    )
    assert translation.pieces(token_id(TARGET, "abc")) == ()


@pytest.mark.parametrize("target_id", [-1, 10_000])
def test_ids_without_a_token_have_no_pieces(target_id: int) -> None:
    assert trimmed_without().pieces(target_id) == ()
    assert Translation.between(TARGET, SENTENCE).pieces(target_id) == ()


def test_a_token_of_absurd_length_has_no_pieces() -> None:
    tokenizer = byte_level(["x" * 256, "x" * 257])
    translation = trimmed_without("x" * 256, "x" * 257, tokenizer=tokenizer)
    assert len(translation.pieces(token_id(tokenizer, "x" * 256))) == 256
    assert translation.pieces(token_id(tokenizer, "x" * 257)) == ()


def test_tokens_beyond_the_rows_of_either_model_do_not_count() -> None:
    target, draft = byte_level(["ab", "cd"], special=()), byte_level(["cd", "ab"], special=())
    translation = Translation.between(target, draft, target_size=257, draft_size=257)
    assert translation.target_ids.size == 257
    assert translation.pieces(257) == ()  # "cd"
    assert len(translation.pieces(256)) == 2  # "ab", which the draft has beyond its rows
    assert translation.drafted.tolist() == list(range(256))


def test_aligned_pieces_end_where_their_tokens_do() -> None:
    translation = trimmed_without(" the", "<|user|>")
    draw = random.Random(0)
    tokens = [draw.randrange(250, TARGET.vocab_size) for _ in range(50)]
    found, ends = translation.align(tokens)
    assert found == translation.draft_ids(tokens)
    for index, end in enumerate(ends):
        assert found[:end] == translation.draft_ids(tokens[: index + 1])


def test_words_whose_bytes_depend_on_their_neighbours_are_their_own_pieces_alone() -> None:
    translation = Translation(
        np.array([0, 2]), np.array([0, -1, 1]), words={}, token_bytes=lambda _: None
    )
    assert [translation.pieces(i) for i in range(3)] == [(0,), (), (1,)]
