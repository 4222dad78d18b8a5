from __future__ import annotations

import json

import pytest

from outrider.errors import ConfigError
from outrider.replay import Trace, concatenate, load_traces


def write(folder, *records: object):
    file = folder / "traces.jsonl"
    file.write_text("\n".join(json.dumps(record) for record in records) + "\n\n")
    return file


def test_a_file_of_traces_is_read(tmp_path) -> None:
    record = {"id": "a", "drafter": "ngram", "prompt_tokens": 7, "accepted": [2, 0]}
    file = write(tmp_path, record, {"id": "b", "accepted": [0], "drafted": [3]})
    assert load_traces(file) == [Trace("a", (2, 0), None, 7), Trace("b", (0,), (3,))]


def test_a_named_list_counts_the_token_of_the_target_too(tmp_path) -> None:
    file = write(tmp_path, {"id": "a", "acc_eagle": [3, 1], "acc_ngram": [1]})
    assert load_traces(file, field="acc_eagle")[0].accepted == (2, 0)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ([1], "is no object"),
        ({"acc_eagle": [1]}, "name the list to take with --field, such as acc_eagle"),
        ({"other": 1}, "has no 'accepted'"),
        ({"accepted": "12"}, "is no list"),
        ({"accepted": 3}, "is no list"),
        ({"accepted": []}, "must hold whole numbers"),
        ({"accepted": [1.5]}, "must hold whole numbers"),
        ({"accepted": [-1]}, "at least 0"),
        ({"accepted": [1, 0], "drafted": [1]}, "as many numbers"),
        ({"accepted": [2], "drafted": [1]}, "at least as large"),
    ],
)
def test_a_line_that_is_no_trace_is_named(tmp_path, record, words) -> None:
    with pytest.raises(ConfigError, match=words):
        load_traces(write(tmp_path, record))


def test_files_that_hold_none_are_refused(tmp_path) -> None:
    file = tmp_path / "x.jsonl"
    for content, words in (("\n", "holds no trace"), ("{", "line 1 is no JSON")):
        file.write_text(content)
        with pytest.raises(ConfigError, match=words):
            load_traces(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is no text"):
        load_traces(file)


def test_a_draft_is_as_long_as_asked_for_or_as_there_is_to_say() -> None:
    assert Trace("a", (2,)).draft(0, 5) == (5, 2)
    assert Trace("a", (2,)).draft(0, 1) == (1, 1)
    assert Trace("a", (2,), (3,)).draft(0, 5) == (3, 2)


def test_traces_can_be_cut_and_joined() -> None:
    one, other = Trace("a", (2, 1, 0)), Trace("b", (1, 0), (4, 0))
    assert one.cut(2) == Trace("a", (2, 1))
    assert concatenate([one, one.cut(1)]) == Trace("a+a", (2, 1, 0, 2))
    assert concatenate([one, other]) == Trace("a+b", (2, 1, 0, 1, 0), (2, 2, 2, 4, 0))
    assert other.cut(1) == Trace("b", (1,), (4,))
