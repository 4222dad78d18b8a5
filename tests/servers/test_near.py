"""Drafting beside the target, in process: exact whatever is drafted, within what was asked."""

from __future__ import annotations

import random
from contextlib import aclosing
from dataclasses import replace

import pytest

from outrider.config import SpeculationSettings
from outrider.drafters import NgramDrafter, SuffixDrafter
from outrider.errors import DraftFailed, RequestError, SessionLost, StaleRound
from outrider.models import TableModel
from outrider.servers.near import NearDraftingTarget
from outrider.targets import NearDraft, OpenRequest, TableTarget
from outrider.types import NO_DRAFT, Draft, DrafterInfo, SamplingParams

pytestmark = pytest.mark.anyio

GREEDY = SamplingParams(temperature=0.0, max_tokens=120)
SEEDED = SamplingParams(temperature=0.7, seed=5, max_tokens=120)
FIXED = SpeculationSettings(controller="fixed", lookahead=4)


class Scripted:
    """Drafts whatever `guess` makes of the session's tokens."""

    def __init__(self, guess) -> None:
        self.guess = guess
        self.released: list[str] = []

    async def describe(self) -> DrafterInfo:
        return DrafterInfo(name="scripted")

    async def propose(self, view, max_tokens: int) -> Draft:
        return Draft(tuple(self.guess(view, max_tokens)), "scripted")

    async def release(self, session_id: str) -> None:
        self.released.append(session_id)

    async def close(self) -> None:
        pass


@pytest.fixture
def model(write_table) -> TableModel:
    return TableModel.load(write_table("near", vocab_size=6, order=2, scale=3.0))


def make(model: TableModel, drafter=None, settings=FIXED) -> NearDraftingTarget:
    table = TableTarget(model, model_id="near", max_sessions=4)
    return NearDraftingTarget(table, {"d": drafter or NgramDrafter()}, settings)


def request(sampling=GREEDY, lookahead: int = 4, **other) -> OpenRequest:
    fields = {"epoch": 0, "prompt_ids": (0, 1, 2), "output_ids": (), "noise_key": 11} | other
    return OpenRequest(
        session_id="s", sampling=sampling, near_draft=NearDraft("d", lookahead), **fields
    )


async def answers(target, round_id: int, position: int, draft=NO_DRAFT, run: int = 0, most=None):
    found = []
    async with aclosing(target.advance("s", round_id, position, draft, run)) as stream:
        async for answer in stream:
            found.append(answer)
            if len(found) == most:
                break
    return found


def said(found) -> tuple[int, ...]:
    return tuple(token for answer in found for token in answer.token_ids)


async def plain(model: TableModel, sampling: SamplingParams) -> tuple[int, ...]:
    target = TableTarget(model, model_id="plain")
    await target.open(replace(request(sampling), near_draft=None))
    return said(await answers(target, 1, 0, run=sampling.max_tokens))


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
@pytest.mark.parametrize("controller", ["fixed", "window", "goodput"])
@pytest.mark.parametrize("drafter", [NgramDrafter, SuffixDrafter])
async def test_the_output_is_what_the_target_alone_says(
    model, sampling, controller, drafter
) -> None:
    target = make(model, drafter(), SpeculationSettings(controller=controller))
    await target.open(request(sampling, lookahead=16))
    found = await answers(target, 1, 0, run=sampling.max_tokens - 1)
    assert said(found) == await plain(model, sampling)
    assert [answer.position for answer in found] == [
        sum(len(answer.token_ids) for answer in found[:index]) for index in range(len(found))
    ]


async def test_a_loop_is_drafted_and_takes_fewer_steps_than_tokens(model) -> None:
    target = make(model)
    await target.open(request())
    found = await answers(target, 1, 0, run=119)
    assert sum(answer.drafted for answer in found) >= sum(answer.accepted for answer in found) > 60
    assert len(found) < 60


@pytest.mark.parametrize("seed", range(8))
async def test_rounds_of_any_size_broken_off_repeated_and_undone_say_the_same(model, seed) -> None:
    draw = random.Random(seed)
    sampling = replace(SEEDED if seed % 2 else GREEDY, max_tokens=48)
    whole = await plain(model, sampling)
    settings = SpeculationSettings(controller="fixed", lookahead=1 + seed % 5)
    target = make(model, SuffixDrafter() if seed > 3 else NgramDrafter(), settings)
    await target.open(request(sampling, lookahead=16))
    committed: list[int] = []
    round_id = 0
    while len(committed) < len(whole):
        repeats = draw.random() < 0.3 and round_id > 0
        if not repeats:
            round_id += 1
            before = committed[:]
            if draw.random() < 0.3:
                before = before[: max(0, len(before) - draw.randrange(6))]
        run = draw.randrange(12)
        guessed = [*whole[len(before) :][: draw.randrange(4)], draw.randrange(6)]
        draft = Draft(tuple(guessed)) if not repeats and draw.random() < 0.3 else NO_DRAFT
        most = draw.choice([None, 1, 2])
        found = await answers(target, round_id, len(before), draft, run, most)
        assert said(found) == whole[len(before) :][: len(said(found))]
        assert {answer.round_id for answer in found} <= {round_id}
        if not repeats and not draft:
            assert len(said(found)) <= run + 1
        if most is None and not repeats and not draft:
            assert len(said(found)) == min(run + 1, len(whole) - len(before))
        committed = [*before, *said(found)]
    assert tuple(committed) == whole


@pytest.mark.parametrize("run", range(7))
async def test_a_round_never_comes_to_more_tokens_than_it_may(model, run) -> None:
    whole = await plain(model, GREEDY)
    target = make(model, Scripted(lambda view, most: whole[view.length - 3 :][:most]))
    await target.open(request(lookahead=16))
    position = len(said(await answers(target, 1, 0)))
    assert position == 1
    found = await answers(target, 2, position, run=run)
    assert len(said(found)) == run + 1
    third = await answers(target, 3, run + 2, Draft(whole[run + 2 :][:3]), run)
    assert third[0].drafted == 3
    assert len(said(third)) == 4 + run


async def test_the_same_round_repeats_what_was_recorded_and_goes_on(model) -> None:
    target = make(model)
    await target.open(request())
    first = await answers(target, 1, 0, run=60, most=4)
    again = await answers(target, 1, 0, Draft((1, 2)), run=60)
    assert again[:4] == first
    assert len(said(again)) == 61
    with pytest.raises(StaleRound, match="round 0 of s came after 1"):
        await answers(target, 0, 0)
    with pytest.raises(SessionLost, match="holds 61 output tokens, not 62"):
        await answers(target, 2, 62)


async def test_a_later_round_stops_an_earlier_one_that_still_runs(model) -> None:
    target = make(model)
    await target.open(request())
    async with aclosing(target.advance("s", 1, 0, NO_DRAFT, 60)) as early:
        await anext(early)
        await answers(target, 2, 1, run=3)
        with pytest.raises(StaleRound):
            await anext(early)


@pytest.mark.parametrize(
    "guess",
    [
        lambda view, most: [0] * most,
        lambda view, most: [],
        lambda view, most: [1] * (most + 50),
        lambda view, most: 1 / 0,
        lambda view, most: (_ for _ in ()).throw(DraftFailed("no")),
        lambda view, most: [99] * most,
        lambda view, most: [-1] * most,
    ],
)
async def test_whatever_the_drafter_does_the_output_is_the_same(model, guess) -> None:
    target = make(model, Scripted(guess))
    await target.open(request())
    assert said(await answers(target, 1, 0, run=119)) == await plain(model, GREEDY)


async def test_a_drafter_that_keeps_failing_is_not_asked_any_more(model) -> None:
    asked = []
    drafter = Scripted(lambda view, most: asked.append(most) or 1 / 0)
    target = make(model, drafter)
    await target.open(request())
    await answers(target, 1, 0, run=119)
    assert len(asked) == 3


async def test_an_output_that_ends_ends_the_round(model, write_table) -> None:
    ending = TableModel.load(write_table("ends", vocab_size=6, order=1, eos=(3,), seed=4))
    for sampling in (replace(SEEDED, seed=seed) for seed in range(4)):
        target = make(ending)
        await target.open(request(sampling, noise_key=sampling.seed))
        found = await answers(target, 1, 0, run=119)
        alone = TableTarget(ending, model_id="plain")
        await alone.open(replace(request(sampling, noise_key=sampling.seed), near_draft=None))
        assert said(found) == said(await answers(alone, 1, 0, run=119))
        assert found[-1].finish_reason is not None
        assert await answers(target, 2, len(said(found)), run=5) == []


async def test_a_session_that_asks_for_no_drafter_is_left_alone(model) -> None:
    target = make(model, Scripted(lambda view, most: pytest.fail("asked")))
    await target.open(replace(request(), near_draft=None))
    assert all(answer.drafted == 0 for answer in await answers(target, 1, 0, run=20))
    await target.open(request(lookahead=0))
    assert all(answer.drafted == 0 for answer in await answers(target, 1, 0, run=20))


async def test_it_names_its_drafters_and_refuses_others(model) -> None:
    target = make(model)
    assert (await target.describe()).drafters == ("d",)
    with pytest.raises(RequestError, match="no drafter 'e' beside this target; known are d"):
        await target.open(replace(request(), near_draft=NearDraft("e", 4)))
    assert target.occupancy() == (0, 4)


async def test_releasing_opening_again_and_closing_leave_nothing_behind(model) -> None:
    drafter = Scripted(lambda view, most: [])
    target = make(model, drafter)
    await target.open(request())
    await target.open(replace(request(), epoch=1, output_ids=(1, 2)))
    assert drafter.released == ["s"]
    await target.release("s")
    await target.release("s")
    assert drafter.released == ["s", "s"]
    assert target.occupancy() == (0, 4)
    assert target._sessions == {}
    with pytest.raises(SessionLost):
        await answers(target, 1, 0)
    await target.close()
