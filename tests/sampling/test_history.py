from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.sampling import History


class Log:
    """A grammar that only remembers what it was told."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def allowed(self) -> np.ndarray:
        return np.ones(4, dtype=bool)

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)

    def rollback(self, count: int) -> None:
        del self.accepted[len(self.accepted) - count :]


@given(
    prompt=st.lists(st.integers(0, 5), max_size=6),
    steps=st.lists(
        st.one_of(st.integers(0, 5), st.just("undo"), st.just("count")), min_size=1, max_size=40
    ),
)
def test_counts_follow_every_extension_and_truncation(prompt, steps) -> None:
    history = History(prompt)
    for step in steps:
        if step == "undo":
            history.truncate(max(len(history) - 2, len(prompt)))
        elif step == "count":
            history.counts()
        else:
            history.extend((step,))
    output = history.tokens[len(prompt) :]
    assert set(history.counts().seen().tolist()) == set(history.tokens)
    ids, times = history.counts().output()
    found = dict(zip(ids.tolist(), times.tolist(), strict=True))
    assert found == {token: output.count(token) for token in set(output)}


def test_counts_hold_many_distinct_tokens() -> None:
    history = History((1, 2))
    history.counts()
    history.extend(range(1000))
    ids, times = history.counts().output()
    assert sorted(ids.tolist()) == list(range(1000))
    assert times.tolist() == [1] * 1000


def test_tokens_given_as_output_are_output() -> None:
    history = History((1, 2), (3, 3))
    assert history.output_length == 2
    assert history.counts().output()[0].tolist() == [3]


def test_the_prompt_cannot_be_cut() -> None:
    history = History((1, 2, 3), (4,))
    with pytest.raises(ValueError, match="cannot cut 4 tokens, 3 of them prompt, to 2"):
        history.truncate(2)
    with pytest.raises(ValueError, match="to 5"):
        history.truncate(5)


def test_a_grammar_follows_the_output_and_back() -> None:
    grammar = Log()
    history = History((1, 2), (3,), mask=grammar)
    history.extend((4, 5))
    history.truncate(4)
    assert grammar.accepted == [3, 4]


def test_the_end_of_the_output_does_not_reach_into_the_prompt() -> None:
    history = History((1, 2), (3, 4))
    assert history.output_ends_with((3, 4))
    assert history.output_ends_with(())
    assert not history.output_ends_with((2, 3, 4))
