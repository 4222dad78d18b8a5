"""Several drafters as one, with scripted parts and a clock of its own."""

from __future__ import annotations

import pytest

from outrider.config import Settings
from outrider.drafters import SessionView, create_drafter
from outrider.drafters.mixed import MixedDrafter
from outrider.drafters.odds import DraftTime, Odds
from outrider.errors import ConfigError, DraftFailed
from outrider.types import NO_DRAFT, Draft, DrafterInfo, SamplingParams
from tests.tiny import tiny_info

pytestmark = pytest.mark.anyio

ROUND_S = 0.05


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Scripted:
    """Counts up as the text does while it is `good`; otherwise it is always wrong."""

    def __init__(self, name: str, clock: Clock, *, good: bool, token_s: float = 0.0) -> None:
        self.name, self.good, self.clock, self.token_s = name, good, clock, token_s
        self.fails = self.silent = False
        self.asked = 0
        self.seconds = 0.0
        self.released: list[str] = []
        self.closed = False

    async def describe(self) -> DrafterInfo:
        return DrafterInfo(self.name, vocab_fingerprint="model" if self.token_s else None)

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        self.asked += 1
        self.seconds += self.token_s * max_tokens
        self.clock.now += self.token_s * max_tokens
        if self.fails:
            raise DraftFailed("broken")
        if self.silent:
            return NO_DRAFT
        first = view.length if self.good else 10**6
        return Draft(tuple(range(first, first + max_tokens)), self.name, match=4)

    async def release(self, session_id: str) -> None:
        self.released.append(session_id)
        if self.fails:
            raise DraftFailed("broken")

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def rounds(mixed: MixedDrafter, clock: Clock, count: int, tokens: list[int]) -> list[str]:
    """Sources of the drafts of so many rounds; the text is its positions."""
    sources = []
    for _ in range(count):
        view = SessionView("s", tokens, len(tokens), 4, SamplingParams(), noise_key=1)
        draft = await mixed.propose(view, 4)
        sources.append(draft.source)
        clock.now += ROUND_S
        right = 0
        while right < len(draft) and draft.token_ids[right] == len(tokens) + right:
            right += 1
        tokens.extend(range(len(tokens), len(tokens) + right + 1))
    return sources


def mix(clock: Clock, *parts: Scripted) -> MixedDrafter:
    return MixedDrafter(parts, deadline_s=1.0, clock=clock)


async def test_a_good_free_source_leaves_a_bad_model_almost_unasked(clock) -> None:
    free, model = Scripted("free", clock, good=True), Scripted("m", clock, good=False, token_s=0.01)
    sources = await rounds(mix(clock, free, model), clock, 500, list(range(4)))
    assert set(sources[20:]) == {"free"}
    assert model.seconds < 0.05 * clock.now


async def test_a_good_model_is_asked_where_the_free_source_is_bad(clock) -> None:
    free, model = Scripted("free", clock, good=False), Scripted("m", clock, good=True, token_s=0.01)
    sources = await rounds(mix(clock, free, model), clock, 100, list(range(4)))
    assert set(sources[30:]) == {"m"}


async def test_a_model_that_costs_more_than_it_gains_is_left_alone(clock) -> None:
    free, model = Scripted("free", clock, good=False), Scripted("m", clock, good=True, token_s=1.0)
    await rounds(mix(clock, free, model), clock, 300, list(range(4)))
    assert model.asked <= 3


async def test_the_choice_follows_when_the_better_source_changes(clock) -> None:
    free, model = Scripted("free", clock, good=True), Scripted("m", clock, good=True, token_s=0.01)
    mixed, tokens = mix(clock, free, model), list(range(4))
    await rounds(mixed, clock, 100, tokens)
    free.good = False
    assert set((await rounds(mixed, clock, 100, tokens))[60:]) == {"m"}
    free.good = True
    assert set((await rounds(mixed, clock, 200, tokens))[-50:]) == {"free"}


async def test_a_model_that_became_good_is_found_out(clock) -> None:
    free, model = (
        Scripted("free", clock, good=False),
        Scripted("m", clock, good=False, token_s=0.01),
    )
    mixed, tokens = mix(clock, free, model), list(range(4))
    await rounds(mixed, clock, 200, tokens)
    model.good = True
    assert (await rounds(mixed, clock, 4000, tokens))[-1] == "m"


async def test_a_failing_part_does_not_harm_the_others(clock) -> None:
    free, model = Scripted("free", clock, good=True), Scripted("m", clock, good=True, token_s=0.01)
    free.fails = True
    sources = await rounds(mix(clock, free, model), clock, 50, list(range(4)))
    assert set(sources) == {"m"}
    assert free.asked < 10


async def test_it_fails_only_when_every_part_does(clock) -> None:
    parts = [Scripted("free", clock, good=True), Scripted("m", clock, good=True, token_s=0.01)]
    for part in parts:
        part.fails = True
    with pytest.raises(DraftFailed, match="all of free, m failed"):
        await rounds(mix(clock, *parts), clock, 1, list(range(4)))


async def test_release_and_close_reach_every_part_also_behind_a_failing_one(clock) -> None:
    parts = [Scripted("free", clock, good=True), Scripted("m", clock, good=True, token_s=0.01)]
    mixed = mix(clock, *parts)
    await rounds(mixed, clock, 2, list(range(4)))
    parts[0].fails = True
    with pytest.raises(DraftFailed):
        await mixed.release("s")
    parts[0].fails = False
    await mixed.close()
    assert [part.released for part in parts] == [["s"], ["s"]]
    assert all(part.closed for part in parts)


async def test_it_never_declares_and_names_its_parts(clock) -> None:
    parts = [Scripted("free", clock, good=True), Scripted("m", clock, good=True, token_s=0.01)]
    info = await mix(clock, *parts).describe()
    assert (info.name, info.declares, info.ahead) == ("mixed:free+m", False, False)


async def test_two_parts_of_one_name_are_refused(clock) -> None:
    parts = [Scripted("free", clock, good=True), Scripted("free", clock, good=True)]
    with pytest.raises(ConfigError, match="two parts named 'free'"):
        await mix(clock, *parts).describe()


@pytest.mark.parametrize(
    "spec", ["mixed:suffix", "mixed:suffix+", "mixed:suffix+suffix", "mixed:suffix+none"]
)
def test_a_mixture_of_fewer_than_two_drafters_is_refused(spec) -> None:
    with pytest.raises(ConfigError, match="two drafters or more"):
        create_drafter(spec, tiny_info(), None, Settings())


async def test_a_mixture_is_made_from_its_parts() -> None:
    mixed = create_drafter("mixed:suffix+ngram", tiny_info(), None, Settings())
    assert (await mixed.describe()).name == "mixed:suffix+ngram"
    await mixed.close()


def test_odds_tell_classes_of_match_apart() -> None:
    odds = Odds()
    for _ in range(50):
        odds.observe(1, 0, right=False)
        odds.observe(4, 0, right=True)
    assert odds.expected(1, 1)[1] < 0.2
    assert odds.expected(4, 1)[1] > 0.8


def test_the_time_of_a_draft_is_split_into_a_part_for_each_and_one_for_each_token() -> None:
    time = DraftTime()
    for tokens in (1, 4, 8) * 10:
        time.observe(tokens, 0.03 + 0.005 * tokens)
    assert time.seconds(16) == pytest.approx(0.11)
