import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import RequestError
from outrider.text import StopStrings

few_letters = st.text(alphabet="ab\n", max_size=30)
stops = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4)


def run(stop_strings: list[str], chunks: list[str]) -> tuple[str, str | None]:
    stop = StopStrings(stop_strings)
    shown = "".join([stop.push(chunk) for chunk in chunks])
    return shown + stop.flush(), stop.matched


def by_definition(stop_strings: list[str], text: str) -> tuple[str, str | None]:
    """The stop string completed first, the longest of those that end at the same character."""
    for end in range(len(text) + 1):
        found = [stop for stop in stop_strings if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(stops, few_letters)
def test_the_result_is_the_one_by_definition(stop_strings: list[str], text: str) -> None:
    assert run(stop_strings, list(text)) == by_definition(stop_strings, text)


@given(stops, few_letters)
def test_cutting_the_text_anywhere_changes_nothing(stop_strings: list[str], text: str) -> None:
    whole = run(stop_strings, [text])
    for cut in range(len(text) + 1):
        assert run(stop_strings, [text[:cut], text[cut:]]) == whole


@given(stops, few_letters)
def test_only_what_may_become_a_stop_string_is_held_back(
    stop_strings: list[str], text: str
) -> None:
    stop = StopStrings(stop_strings)
    shown = "".join([stop.push(char) for char in text])
    if stop.matched is None:
        held = text[len(shown) :]
        longest = max(
            (
                length
                for candidate in stop_strings
                for length in range(len(candidate))
                if text.endswith(candidate[:length])
            ),
            default=0,
        )
        assert len(held) == longest


def test_nothing_is_shown_after_a_match() -> None:
    stop = StopStrings(["END"])
    assert stop.push("one ENDtwo") == "one "
    assert stop.push("three") == ""
    assert stop.flush() == ""
    assert stop.matched == "END"


def test_a_stop_string_over_several_pieces_is_found() -> None:
    assert run(["\n\n"], ["a\n", "\nb"]) == ("a", "\n\n")


def test_a_false_start_is_shown_at_once() -> None:
    stop = StopStrings(["<end>"])
    assert stop.push("a<en") == "a"
    assert stop.push("ough") == "<enough"


def test_a_repeated_beginning_is_not_missed() -> None:
    assert run(["aab"], ["a", "a", "a", "b"]) == ("a", "aab")


def test_the_stop_string_completed_first_wins() -> None:
    assert run(["abcd", "bc"], ["abcd"]) == ("a", "bc")


def test_without_stop_strings_everything_is_shown_at_once() -> None:
    stop = StopStrings([])
    assert stop.push("anything") == "anything"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="empty") as caught:
        StopStrings(["a", ""])
    assert caught.value.param == "stop"
