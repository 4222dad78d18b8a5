"""Frames."""

from __future__ import annotations

import json

import pytest

from outrider.gateway.stream import error_frame, json_text
from outrider.serving import failure_of

from .serving import parse_events


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        'quote " and \\',
        "line\nbreak\r\n",
        "日本語 🙂",
        "\x85 \u2028 \u2029",
        "\x00\x0b\x0c",
    ],
)
def test_a_text_is_one_line_for_every_idea_of_a_line(text: str) -> None:
    encoded = json_text(text)
    assert len(encoded.decode().splitlines()) == 1
    assert json.loads(encoded) == text


def test_an_error_event_parses_alone() -> None:
    (event,) = parse_events(error_frame(failure_of(ValueError("line\n\nbreak"))))
    assert event["error"]["type"] == "internal_error"
