from __future__ import annotations

import random

import pytest

from outrider.drafters import NgramDrafter, SessionView
from outrider.types import SamplingParams

pytestmark = pytest.mark.anyio


def view(tokens: list[int], length: int | None = None, session_id: str = "s") -> SessionView:
    return SessionView(
        session_id=session_id,
        tokens=tokens,
        length=len(tokens) if length is None else length,
        prompt_length=1,
        sampling=SamplingParams(),
        noise_key=0,
    )


async def drafted(tokens: list[int], k: int = 8, **options: int) -> tuple[int, ...]:
    return (await NgramDrafter(**options).propose(view(tokens), k)).token_ids


async def test_it_continues_an_earlier_occurrence_of_the_suffix() -> None:
    assert await drafted([1, 2, 3, 4, 5, 9, 1, 2, 3], k=2) == (4, 5)


async def test_it_prefers_the_longest_match() -> None:
    tokens = [7, 1, 2, 50, 0, 8, 1, 2, 60, 0, 7, 1, 2]
    assert await drafted(tokens, k=1) == (50,)


async def test_among_equally_long_matches_it_prefers_the_latest() -> None:
    assert await drafted([1, 2, 50, 0, 1, 2, 60, 9, 1, 2], k=1) == (60,)


async def test_it_drafts_nothing_without_a_match() -> None:
    assert await drafted([1, 2, 3, 4]) == ()
    assert await drafted([1]) == ()


async def test_a_match_shorter_than_the_minimum_does_not_count() -> None:
    assert await drafted([1, 2, 3, 1], min_match=2) == ()
    assert await drafted([1, 2, 3, 1], k=3, min_match=1) == (2, 3, 1)


async def test_a_copy_that_reaches_the_end_goes_round() -> None:
    assert await drafted([9, 5, 6, 5, 6, 5, 6], k=5) == (5, 6, 5, 6, 5)
    assert await drafted([1, 2, 3, 1, 2], k=5) == (3, 1, 2, 3, 1)


async def test_tokens_beyond_the_view_are_not_looked_at() -> None:
    tokens = [1, 2, 3, 9, 1, 2, 7, 7, 1, 2, 8]
    found = await NgramDrafter().propose(view(tokens, length=6), 3)
    assert found.token_ids == (3, 9, 1)


async def test_growing_round_by_round_finds_what_a_fresh_look_finds() -> None:
    draw = random.Random(3)
    tokens = [draw.randrange(4) for _ in range(300)]
    grown = NgramDrafter()
    for length in range(1, 300, 3):
        slow = await NgramDrafter().propose(view(tokens, length), 5)
        assert await grown.propose(view(tokens, length), 5) == slow


async def test_only_new_tokens_are_indexed_in_each_round() -> None:
    class Counting(list):
        read = 0

        def __getitem__(self, index):
            if isinstance(index, slice):
                Counting.read += len(range(*index.indices(len(self))))
            return super().__getitem__(index)

    tokens = Counting(range(5000))
    drafter = NgramDrafter()
    await drafter.propose(view(tokens, 4999), 4)
    Counting.read = 0
    await drafter.propose(view(tokens, 5000), 4)
    assert Counting.read < 50


async def test_sessions_do_not_see_each_other() -> None:
    drafter = NgramDrafter()
    await drafter.propose(view([1, 2, 3, 4], session_id="a"), 4)
    assert (await drafter.propose(view([9, 1, 2], session_id="b"), 4)).token_ids == ()


async def test_a_released_session_is_forgotten() -> None:
    drafter = NgramDrafter()
    await drafter.propose(view([1, 2, 3]), 4)
    await drafter.release("s")
    await drafter.release("never seen")
    assert drafter._indexes == {}


def test_impossible_match_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="min_match 3 and max_match 2"):
        NgramDrafter(min_match=3, max_match=2)


async def test_a_guess_is_drafted_behind_and_not_indexed() -> None:
    drafter = NgramDrafter()
    tokens = [1, 2, 3, 4, 5, 1]
    seen = SessionView("s", tokens, 6, 6, SamplingParams(), noise_key=0, guess=(2, 3))
    assert (await drafter.propose(seen, 2)).token_ids == (4, 5)
    assert (await drafter.propose(seen, 8)).token_ids == (4, 5, 1, 2, 3, 4, 5, 1)
    plain = SessionView("s", [*tokens, 9, 1, 2], 9, 6, SamplingParams(), noise_key=0)
    assert (await drafter.propose(plain, 1)).token_ids == (3,)
    unknown = SessionView("s", [*tokens, 9, 1, 2], 9, 6, SamplingParams(), noise_key=0, guess=(7,))
    assert len(await drafter.propose(unknown, 1)) == 0
