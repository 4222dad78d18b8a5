"""Ratio verification within the round loop: what is drawn is judged, and liars are found out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
from structlog.testing import capture_logs

from outrider.drafters import DeclaringDrafter, NgramDrafter, SessionView, TableDrafter
from outrider.errors import DraftFailed, RequestError
from outrider.models import TableModel
from outrider.types import (
    NO_DRAFT,
    Draft,
    DrafterInfo,
    DraftRow,
    Exactness,
    SampledDraft,
    SamplingParams,
    VerificationMethod,
)
from tests.pipeline.scenes import (
    PROMPT,
    ForgetfulTarget,
    SlowTarget,
    alone,
    pipeline_over,
    run,
    settings,
    table_target,
)

pytestmark = pytest.mark.anyio

SAMPLED = SamplingParams(max_tokens=30)
BLOCK = settings(controller="fixed", lookahead=3, verification="block")


class Drawing:
    """Draws from a table, after what `before` says of every call of `prepare` and `draw`."""

    def __init__(
        self,
        model: TableModel,
        before: Callable[[str], float | Exception] = lambda call: 0.0,
        change: Callable[[SampledDraft], SampledDraft] = lambda draft: draft,
    ) -> None:
        self._inner = TableDrafter(model)
        self._before = before
        self._change = change
        self.drawn: list[SampledDraft] = []
        self.proposed = 0
        self.released = 0

    async def describe(self) -> DrafterInfo:
        return await self._inner.describe()

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        self.proposed += 1
        return await self._inner.propose(view, max_tokens)

    async def prepare(self, view: SessionView) -> None:
        await self._wait("prepare")

    async def draw(self, view: SessionView, max_tokens: int) -> Draft | SampledDraft:
        draft = await self._inner.draw(view, max_tokens)
        assert isinstance(draft, SampledDraft)
        self.drawn.append(self._change(draft))
        await self._wait("draw")
        return self.drawn[-1]

    async def release(self, session_id: str) -> None:
        self.released += 1

    async def close(self) -> None:
        """Nothing is held."""

    async def _wait(self, call: str) -> None:
        said = self._before(call)
        if isinstance(said, Exception):
            raise said
        await asyncio.sleep(said)


class Recording(ForgetfulTarget):
    """Remembers which drafts it was asked to judge."""

    def __init__(self, inner, lost_rounds=frozenset()) -> None:
        super().__init__(inner, set(lost_rounds))
        self.judged: list[Draft | SampledDraft] = []

    async def advance(self, session_id, round_id, position, draft, run):
        self.judged.append(draft)
        async for answer in super().advance(session_id, round_id, position, draft, run):
            yield answer


@pytest.fixture
def model(write_table) -> TableModel:
    return TableModel.load(write_table("draft", seed=2))


@pytest.fixture
def target(write_table) -> Recording:
    return Recording(table_target(write_table("target", seed=1)))


def test_table_and_model_drafters_can_declare(model) -> None:
    assert isinstance(TableDrafter(model), DeclaringDrafter)
    assert not isinstance(NgramDrafter(), DeclaringDrafter)


@pytest.mark.parametrize("method", ["token", "block"])
async def test_unseeded_requests_are_judged_by_the_configured_rule(target, model, method) -> None:
    drafter = Drawing(model)
    configured = settings(controller="fixed", lookahead=3, verification=method)
    pipeline = await pipeline_over(target, drafter, configured=configured)
    session = pipeline.session(PROMPT, SAMPLED)
    assert len(await run(pipeline, session)) == 30
    drafts = [draft for draft in target.judged if len(draft)]
    assert drafts == drafter.drawn
    assert target.opened[0].verification == method
    stated, exact, reason = session.verification()
    assert (stated, exact) == (method, Exactness.DISTRIBUTION)
    assert "ratios" in str(reason)
    assert session.stats.ratio_drafted == session.stats.drafted > 20


@pytest.mark.parametrize(
    "params",
    [SamplingParams(max_tokens=30, seed=1), SamplingParams(max_tokens=30, temperature=0.0)],
    ids=["seeded", "greedy"],
)
async def test_seeded_and_greedy_requests_are_matched_whatever_is_configured(
    target, model, params, write_table
) -> None:
    drafter = Drawing(model)
    pipeline = await pipeline_over(target, drafter, configured=BLOCK)
    session = pipeline.session(PROMPT, params)
    file = write_table("target", seed=1)
    assert await run(pipeline, session) == alone(file, PROMPT, params)
    assert drafter.drawn == []
    assert session.verification()[1] is Exactness.IDENTICAL


@pytest.mark.parametrize("wanted", [VerificationMethod.TOKEN, VerificationMethod.BLOCK])
@pytest.mark.parametrize(
    ("params", "drafter"),
    [
        (SamplingParams(seed=1), "table"),
        (SamplingParams(temperature=0.0), "table"),
        (SAMPLED, "ngram"),
    ],
)
async def test_a_ratio_rule_that_could_not_be_kept_to_is_refused_by_name(
    target, model, params, drafter, wanted
) -> None:
    pipeline = await pipeline_over(target, TableDrafter(model), NgramDrafter())
    with pytest.raises(RequestError, match=f"verification is {wanted}") as caught:
        pipeline.session(PROMPT, params, drafter=drafter, verification=wanted)
    assert caught.value.param == "speculation.verification"


async def test_a_request_may_ask_for_a_rule_of_its_own(target, model) -> None:
    drafter = Drawing(model)
    pipeline = await pipeline_over(target, drafter, configured=BLOCK)
    matched = pipeline.session(PROMPT, SAMPLED, verification=VerificationMethod.MATCHING)
    await run(pipeline, matched)
    assert drafter.drawn == []
    assert matched.verification()[0] is VerificationMethod.MATCHING
    judged = pipeline.session(PROMPT, SAMPLED, verification=VerificationMethod.TOKEN)
    await run(pipeline, judged)
    assert judged.verification()[0] is VerificationMethod.TOKEN


async def test_a_drawn_draft_is_judged_however_late_it_comes(target, model) -> None:
    drafter = Drawing(model, lambda call: 0.03 if call == "draw" else 0.0)
    configured = settings(controller="fixed", lookahead=3, verification="block", deadline_ms=5)
    pipeline = await pipeline_over(target, drafter, configured=configured)
    session = pipeline.session(PROMPT, SAMPLED)
    await run(pipeline, session)
    assert [draft for draft in target.judged if len(draft)] == drafter.drawn
    assert session.stats.failures == 0


async def test_a_drafter_that_is_late_to_get_ready_has_drawn_nothing(model, write_table) -> None:
    slow = iter([0.05])
    drafter = Drawing(model, lambda call: next(slow, 0.0) if call == "prepare" else 0.0)
    configured = settings(controller="fixed", lookahead=3, verification="block", deadline_ms=5)
    target = SlowTarget(table_target(write_table("target", seed=1)), 0.001)
    pipeline = await pipeline_over(target, drafter, configured=configured)
    session = pipeline.session(PROMPT, SamplingParams(max_tokens=200))
    assert len(await run(pipeline, session)) == 200
    assert session.stats.failures == 1
    assert session.stats.ratio_drafted == sum(len(draft) for draft in drafter.drawn) > 0


async def test_a_draft_that_the_target_lost_is_offered_again(write_table, model) -> None:
    target = Recording(table_target(write_table("target", seed=1)), lost_rounds={3, 4})
    drafter = Drawing(model)
    pipeline = await pipeline_over(target, drafter, configured=BLOCK)
    session = pipeline.session(PROMPT, SAMPLED)
    assert len(await run(pipeline, session)) == 30
    assert target.judged[2] is target.judged[3] is target.judged[4] is drafter.drawn[1]
    assert len({id(draft) for draft in target.judged}) == len(drafter.drawn) + 1  # and NO_DRAFT


async def test_after_a_fault_that_may_have_lost_a_draft_the_session_matches(target, model) -> None:
    fails = iter([0.0, KeyError("bug")])
    drafter = Drawing(model, lambda call: next(fails, 0.0) if call == "draw" else 0.0)
    pipeline = await pipeline_over(target, drafter, configured=BLOCK)
    session = pipeline.session(PROMPT, SamplingParams(max_tokens=60))
    assert len(await run(pipeline, session)) == 60
    assert len(drafter.drawn) == 2
    assert drafter.proposed > 0
    assert session.stats.failures == 1


async def test_a_drafter_that_says_that_it_drew_nothing_is_asked_again(target, model) -> None:
    class Hesitant(Drawing):
        fails = iter([True])

        async def draw(self, view: SessionView, max_tokens: int) -> Draft | SampledDraft:
            if next(self.fails, False):
                raise DraftFailed("no room")
            return await super().draw(view, max_tokens)

    drafter = Hesitant(model)
    pipeline = await pipeline_over(target, drafter, configured=BLOCK)
    session = pipeline.session(PROMPT, SamplingParams(max_tokens=60))
    assert len(await run(pipeline, session)) == 60
    assert session.stats.failures == 1
    assert session.stats.ratio_drafted == session.stats.drafted > 0


MALFORMED: dict[str, Callable[[SampledDraft], SampledDraft]] = {
    "too long": lambda draft: SampledDraft(draft.token_ids * 9, draft.rows * 9, draft.source),
    "without rows": lambda draft: SampledDraft(draft.token_ids, draft.rows[:-1], draft.source),
    "empty": lambda draft: SampledDraft((), (), draft.source),
    "outside": lambda draft: SampledDraft((5,), draft.rows[:1], draft.source),
}


@pytest.mark.parametrize("fault", MALFORMED)
async def test_a_draw_that_is_no_draft_costs_only_itself(target, model, fault) -> None:
    drafter = Drawing(model, change=MALFORMED[fault])
    pipeline = await pipeline_over(target, drafter, configured=BLOCK)
    session = pipeline.session(PROMPT, SamplingParams(max_tokens=60))
    assert len(await run(pipeline, session)) == 60
    assert len(drafter.drawn) == 1
    assert session.stats.ratio_drafted == 0


@pytest.mark.parametrize("error", [DraftFailed("broken"), KeyError("bug")])
async def test_a_drafter_that_fails_to_get_ready_costs_only_its_drafts(
    target, model, error
) -> None:
    drafter = Drawing(model, lambda call: error if call == "prepare" else 0.0)
    pipeline = await pipeline_over(target, drafter, configured=BLOCK)
    session = pipeline.session(PROMPT, SamplingParams(max_tokens=60))
    assert len(await run(pipeline, session)) == 60
    assert drafter.drawn == []
    assert session.stats.failures == 3


async def test_a_draw_may_come_to_nothing(target, model) -> None:
    class Speechless(Drawing):
        async def draw(self, view: SessionView, max_tokens: int) -> Draft | SampledDraft:
            return NO_DRAFT

    pipeline = await pipeline_over(target, Speechless(model), configured=BLOCK)
    session = pipeline.session(PROMPT, SAMPLED)
    assert len(await run(pipeline, session)) == 30
    assert session.verification()[0] is VerificationMethod.NONE


def flat(draft: SampledDraft) -> SampledDraft:
    """Declare the uniform distribution, whatever was drawn from."""
    row = DraftRow(np.arange(5), np.full(5, 13107, dtype=np.uint16))
    return SampledDraft(draft.token_ids, (row,) * len(draft), draft.source)


def impossible(draft: SampledDraft) -> SampledDraft:
    """Declare a distribution that cannot have given the first token."""
    token = (draft.token_ids[0] + 1) % 5
    row = DraftRow(np.array([token]), np.array([65535], dtype=np.uint16))
    return SampledDraft(draft.token_ids, (row, *draft.rows[1:]), draft.source)


@pytest.mark.parametrize("lie", [flat, impossible])
async def test_a_drafter_that_declares_what_it_did_not_draw_from_is_demoted_to_matching(
    target, write_table, lie
) -> None:
    peaked = TableModel.load(write_table("draft", seed=2, scale=4.0))
    drafter = Drawing(peaked, change=lie)
    pipeline = await pipeline_over(target, drafter, configured=BLOCK)
    long = SamplingParams(max_tokens=1000)
    with capture_logs() as logs:
        await run(pipeline, pipeline.session(PROMPT, long))
        honest_rounds = len(drafter.drawn)
        later = pipeline.session(PROMPT, long)
        await run(pipeline, later)
    assert len(drafter.drawn) == honest_rounds < 100
    with pytest.raises(RequestError, match="draws what it declares"):
        pipeline.session(PROMPT, long, verification=VerificationMethod.BLOCK)
    assert later.verification()[0] is VerificationMethod.MATCHING
    demotions = [entry for entry in logs if entry["event"] == "drafter_demoted"]
    assert len(demotions) == 1
    assert demotions[0]["drafter"] == "table"
    assert pipeline.metrics.drafters_demoted.labels("table")._value.get() == 1


async def test_an_honest_drafter_is_not_demoted(target, model) -> None:
    pipeline = await pipeline_over(target, TableDrafter(model), configured=BLOCK)
    session = pipeline.session(PROMPT, SamplingParams(max_tokens=3000))
    await run(pipeline, session)
    assert session.stats.ratio_drafted == session.stats.drafted
