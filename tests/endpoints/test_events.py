"""Server-sent events, however their bytes are cut."""

from __future__ import annotations

import pytest

from outrider.endpoints import Events

STREAM = (
    b": a comment\n\ndata: one\n\nevent: x\r\ndata: two\r\n"
    b"data:three\r\nid: 7\r\n\r\ndata: [DONE]\n\n"
)
DATA = [b"one", b"two\nthree", b"[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_events_are_the_same_however_they_are_cut(size) -> None:
    events = Events()
    blocks = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [data for block in blocks for data in events.feed(block)] == DATA


def test_an_event_that_is_not_finished_is_none() -> None:
    assert list(Events().feed(b"data: half")) == []


def test_a_line_separator_of_unicode_ends_no_line() -> None:
    data = "a\u2028b\x85c".encode()
    assert list(Events().feed(b"data: " + data + b"\n\n")) == [data]
