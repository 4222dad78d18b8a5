import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import VocabularyMismatch
from outrider.text import HFTokenizer, check_same_vocabulary, coverage, fingerprint, same_vocabulary

strings = st.lists(st.none() | st.text(max_size=3), max_size=8)


def check(target: list[str | None], draft: list[str | None]) -> None:
    check_same_vocabulary(target, draft, target_name="big", draft_name="small")


@given(strings)
def test_a_vocabulary_is_the_same_as_itself(vocabulary: list[str | None]) -> None:
    check(vocabulary, vocabulary)


@given(strings, strings)
def test_equal_fingerprints_mean_equal_strings(a: list[str | None], b: list[str | None]) -> None:
    def trimmed(vocabulary: list[str | None]) -> list[str | None]:
        while vocabulary and vocabulary[-1] is None:
            vocabulary = vocabulary[:-1]
        return vocabulary

    assert (fingerprint(a) == fingerprint(b)) == (trimmed(a) == trimmed(b))


def test_a_fingerprint_does_not_depend_on_padding() -> None:
    assert fingerprint(["a", "b", None, None]) == fingerprint(("a", "b"))


@pytest.mark.parametrize(
    "padding",
    [
        [None],
        ["<unused0>", "<unused1>"],
        ["[PAD2]", "[PAD3]"],
        ["<|reserved_special_token_0|>", None],
        ["<|dummy_0|>", "<|extra_1|>", "<|placeholder2|>"],
    ],
)
def test_padding_on_either_side_is_tolerated(padding: list[str | None]) -> None:
    check(["a", "b", *padding], ["a", "b"])
    check(["a", "b"], ["a", "b", *padding])


def test_a_reserved_id_matches_whatever_the_other_made_of_it() -> None:
    check(["a", "<|reserved_special_token_2|>"], ["a", "<|tool|>"])


def test_a_real_token_that_the_other_side_lacks_counts() -> None:
    with pytest.raises(VocabularyMismatch, match="1 of 2 ids"):
        check(["a"], ["a", "b"])


def test_a_mismatch_shows_what_differs_and_what_to_do() -> None:
    target: list[str | None] = [*"abcdefgh"]
    draft: list[str | None] = [*"abcXYZW"]
    with pytest.raises(VocabularyMismatch) as caught:
        check(target, draft)
    message = str(caught.value)
    for part in ("'small'", "'big'", "5 of 8", "id 3: 'd' / 'X'", "...", "8 / 7", "ngram"):
        assert part in message
    assert "id 6" not in message
    assert "\n" not in message


@given(strings, strings)
def test_vocabularies_are_the_same_if_the_check_says_so(
    a: list[str | None], b: list[str | None]
) -> None:
    try:
        check(a, b)
    except VocabularyMismatch:
        assert not same_vocabulary(a, b)
    else:
        assert same_vocabulary(a, b)


def test_a_whole_vocabulary_covers_all_of_a_text_and_none_of_it_nothing(
    byte_level: HFTokenizer,
) -> None:
    assert coverage(byte_level, range(byte_level.vocab_size)) == 1.0
    assert coverage(byte_level, frozenset()) == 0.0


def test_coverage_counts_tokens_as_often_as_a_text_has_them(byte_level: HFTokenizer) -> None:
    def share(*words: str) -> float:
        wanted = {byte_level.token_strings.index(word) for word in words}
        return coverage(byte_level, wanted)

    assert 0.0 < share("$") < share(".")
    assert share("$", ".") == pytest.approx(share("$") + share("."))
