"""Finding what begins alike, against a search through everything."""

from __future__ import annotations

import random
import time

import pytest

from outrider.engine.prefix import PrefixIndex
from outrider.errors import RequestError


def shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def found(index: PrefixIndex, tokens: tuple[int, ...], tenant: str = "a") -> list[tuple[int, int]]:
    return list(index.matches(tenant, tokens))


def test_what_begins_alike_is_found_longest_first() -> None:
    index = PrefixIndex()
    for number, tokens in enumerate([(1, 2, 3, 4), (1, 2, 9), (1, 2, 3), (7,), ()]):
        index.add(number, "a", tokens)
    matches = found(index, (1, 2, 3, 4, 5))
    assert matches == [(0, 4), (2, 3), (1, 2)]


def test_nothing_is_found_of_another_tenant() -> None:
    index = PrefixIndex()
    index.add(0, "a", (1, 2, 3))
    assert found(index, (1, 2, 3), "b") == []
    assert found(index, (1, 2, 3), "") == []


def test_what_was_removed_is_not_found_and_leaves_nothing_behind() -> None:
    index = PrefixIndex()
    index.add(0, "a", (1, 2, 3))
    index.remove(0)
    index.remove(0)
    assert found(index, (1, 2, 3)) == []
    assert (len(index), index._sorted) == (0, {})


def test_it_finds_what_a_search_through_everything_finds() -> None:
    draw = random.Random(1)
    index = PrefixIndex()
    held: dict[int, tuple[str, tuple[int, ...]]] = {}
    for number in range(400):
        tokens = tuple(draw.choice([0, 1, 255, 256, 70_000]) for _ in range(draw.randrange(8)))
        held[number] = (draw.choice("ab"), tokens)
        index.add(number, *held[number])
        if draw.random() < 0.3:
            gone = draw.choice(list(held))
            index.remove(gone)
            del held[gone]
        tenant, asked = draw.choice("ab"), held.get(number, ("", (1, 0)))[1] + (1,)
        expected = {
            other: common
            for other, (owner, other_tokens) in held.items()
            if owner == tenant and (common := shared(asked, other_tokens))
        }
        matches = found(index, asked, tenant)
        assert dict(matches) == expected
        assert [common for _, common in matches] == sorted(expected.values(), reverse=True)


@pytest.mark.parametrize("tokens", [(1, -1), (1, 2**32)])
def test_an_impossible_id_is_refused_by_name(tokens: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match=str(tokens[1])):
        PrefixIndex().add(0, "a", tokens)


def test_a_long_prompt_is_looked_up_among_many_in_milliseconds() -> None:
    """A search token by token through what is kept would take seconds."""
    index = PrefixIndex()
    prompt = tuple(range(32_000))
    for number in range(200):
        index.add(number, "a", (*prompt[: 100 * number], 5))
    started = time.process_time()
    number, common = next(index.matches("a", prompt))
    assert (number, common) == (199, 19_900)
    assert time.process_time() - started < 0.5
