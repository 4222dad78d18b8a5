"""Whatever a server sends, what is read of it is printable, short and in range."""

from __future__ import annotations

import json

import pytest

from outrider.endpoints.wire import Choice, Completion, Models, complaint, decode, one_line

NASTY = "a\x1b]0;owned\x07\x1b[2J\u202e\nb"


def completion(**fields) -> Completion | None:
    return decode(json.dumps({"choices": [{"text": "x"}], **fields}).encode(), Completion)


@pytest.mark.parametrize("field", ["verification", "exact", "reason"])
def test_a_claim_loses_its_control_characters_and_its_length(field) -> None:
    read = completion(speculation={field: NASTY + "x" * 10_000})
    claim = getattr(read.account, field)
    assert claim.isprintable()
    assert claim.startswith("a ]0;owned  [2J  b")
    assert len(claim) <= 203


def test_a_complaint_loses_them_too() -> None:
    content = json.dumps({"error": {"message": NASTY * 1000}}).encode()
    assert complaint(content).isprintable()
    assert len(complaint(content)) <= 303


def test_a_model_id_that_cannot_be_shown_as_it_is_is_told_from_one_that_can() -> None:
    fine, odd, long = (
        decode(json.dumps({"data": [{"id": name}]}).encode(), Models)
        for name in ("org/model 1", NASTY, "x" * 1000)
    )
    assert (fine.ids, fine.unfit) == (["org/model 1"], False)
    assert odd.unfit
    assert odd.ids[0].isprintable()
    assert long.unfit
    assert len(long.ids[0]) < 300


def test_pieces_of_text_are_printable_and_different_texts_stay_different() -> None:
    texts = ["a\nb", "a b", "a\tb", "a\\nb", "a\x1bb", "a\ud800b", NASTY]
    pieces = [Choice(text=text).pieces() for text in texts]
    assert len(set(pieces)) == len(texts)
    assert all(piece.isprintable() for found in pieces for piece in found)
    assert Choice(text="one two\n three").pieces(3) == ("one", " two", r"\n three")


def test_a_piece_is_short_and_nothing_is_cut_off() -> None:
    text = "x" * 950 + " " * 430 + "end"
    pieces = Choice(text=text).pieces()
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 200


def test_texts_are_told_apart_from_the_first_character_that_differs() -> None:
    one, other = Choice(text="same\n1"), Choice(text="same\t1")
    assert (one.apart(other), other.apart(one)) == (r"\n1", r"\t1")
    assert Choice(text="same").apart(one) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": [{"token_ids": [-1]}]},
        {"choices": [{"token_ids": [2**31]}]},
        {"speculation": {"drafted_tokens": -1}},
        {"speculation": {"accepted_tokens": 10**100}},
        {"timings": {"draft_n": 2**40}},
    ],
)
def test_numbers_out_of_range_make_no_completion(fields) -> None:
    assert completion(**fields) is None


def test_what_is_nested_too_deeply_is_not_read() -> None:
    assert decode(b'{"choices": [], "x": ' + b"[" * 200_000, Completion) is None


def test_a_line_of_the_right_length_is_left_alone() -> None:
    assert one_line("abc", 3) == "abc"
    assert one_line("abcd", 3) == "abc..."
