"""What follows from the times of an answer."""

from __future__ import annotations

import pytest

from outrider.bench.baselines.answer import Answer, Chunk


def test_tokens_of_the_first_chunk_do_not_count_as_decoded() -> None:
    answer = Answer(10.0, (Chunk(11.0, 3), Chunk(11.5, 1), Chunk(13.0, 4)), 13.25)
    assert (answer.tokens, answer.decoded) == (8, 5)
    assert answer.decode_s == pytest.approx(2.0)
    assert answer.ttft_s == pytest.approx(1.0)
    assert answer.wall_s == pytest.approx(3.25)


def test_an_empty_answer_has_no_first_token() -> None:
    answer = Answer(10.0, (), 10.5)
    assert answer.ttft_s is None
    assert (answer.tokens, answer.decoded, answer.decode_s) == (0, 0, 0.0)
