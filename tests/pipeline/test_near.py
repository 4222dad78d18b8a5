"""Drafters that run beside a target elsewhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from outrider.config import load_settings
from outrider.errors import ConfigError, RequestError
from outrider.metrics import Metrics
from outrider.pipeline import Pipeline, create
from outrider.targets import NearDraft, Opened, OpenRequest
from outrider.types import Capabilities, Draft, SamplingParams, Verification, VerificationMethod
from tests.pipeline.scenes import PROMPT, ScriptedDrafter, alone, run, settings, table_target

pytestmark = pytest.mark.anyio

SAMPLING = SamplingParams(temperature=0.0, max_tokens=20)


class Elsewhere:
    """A target that says it is elsewhere, with a drafter beside it; notes what it is asked."""

    def __init__(self, inner, *drafters: str) -> None:
        self._inner = inner
        self._drafters = drafters
        self.opened: list[OpenRequest] = []
        self.asked: list[tuple[int, int]] = []

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    async def describe(self):
        info = await self._inner.describe()
        capabilities = Capabilities(ratios=False, batch_invariant=True)
        return replace(info, drafters=self._drafters, capabilities=capabilities)

    async def open(self, request: OpenRequest) -> Opened:
        self.opened.append(request)
        return await self._inner.open(request)

    def advance(
        self, session_id: str, round_id: int, position: int, draft: Draft, run: int
    ) -> AsyncGenerator[Verification]:
        self.asked.append((len(draft), run))
        return self._inner.advance(session_id, round_id, position, draft, run)


async def _pipeline(target, drafters, **speculation) -> Pipeline:
    return Pipeline(target, await target.describe(), drafters, settings(**speculation), Metrics())


async def test_the_target_drafts_and_runs_to_the_end_in_one_question(file) -> None:
    target = Elsewhere(table_target(file), "ngram")
    pipeline = await _pipeline(target, {"ngram": None}, max_lookahead=8)
    session = pipeline.session(PROMPT, SAMPLING)
    await run(pipeline, session)
    assert target.opened[0].near_draft == NearDraft("ngram", 8)
    assert target.asked == [(0, 19)]
    assert session.stats.drafter == "ngram"
    await pipeline.close()


async def test_a_request_may_ask_for_less_or_for_nothing(file) -> None:
    target = Elsewhere(table_target(file), "ngram")
    pipeline = await _pipeline(target, {"ngram": None})
    for options, expected in (
        ({"max_lookahead": 2}, NearDraft("ngram", 2)),
        ({"max_lookahead": 40}, NearDraft("ngram", 16)),
        ({"max_lookahead": 0}, None),
        ({"enabled": False}, None),
    ):
        assert pipeline.session(PROMPT, SAMPLING, **options).opening.near_draft == expected


async def test_a_drafter_of_the_gateway_serves_beside_one_of_the_target(file) -> None:
    target, drafter = Elsewhere(table_target(file), "ngram"), ScriptedDrafter(lambda view, k: (0,))
    described = (drafter, await drafter.describe())
    pipeline = await _pipeline(target, {"ngram": None, "scripted": described})
    session = pipeline.session(PROMPT, SAMPLING, drafter="scripted")
    await run(pipeline, session)
    assert session.opening.near_draft is None
    assert drafter.asked


async def test_a_prediction_is_drafted_here_instead_of_there(file) -> None:
    target = Elsewhere(table_target(file), "ngram")
    pipeline = await _pipeline(target, {"ngram": None}, controller="fixed")
    output = alone(file, PROMPT, SAMPLING)
    session = pipeline.session(PROMPT, SAMPLING, prediction=output[:12])
    assert await run(pipeline, session) == output
    assert session.opening.near_draft is None
    assert session.stats.predicted_accepted >= 8


async def test_a_target_elsewhere_weighs_no_drafts(file) -> None:
    target, drafter = Elsewhere(table_target(file)), ScriptedDrafter(lambda view, k: (0,))
    drafter._info = replace(drafter._info, declares=True)
    pipeline = await _pipeline(target, {"scripted": (drafter, await drafter.describe())})
    sampled = SamplingParams(temperature=1.0, max_tokens=20)
    session = pipeline.session(PROMPT, sampled)
    assert session.preferred is VerificationMethod.MATCHING
    with pytest.raises(RequestError, match="one process with the target"):
        pipeline.session(PROMPT, sampled, verification=VerificationMethod.BLOCK)


async def test_drafters_go_where_the_settings_say(file, monkeypatch) -> None:
    target = Elsewhere(table_target(file), "ngram")
    monkeypatch.setattr(create, "create_target", lambda settings, progress: (target, None))

    async def named(**speculation) -> tuple[str, ...]:
        configured = load_settings(
            None, {"engine": {"target": "grpc://127.0.0.1:1"}, "speculation": speculation}
        )
        pipeline = await create.create_pipeline(configured)
        near = pipeline.session(PROMPT, SAMPLING).opening.near_draft
        return pipeline.drafter_names, near is not None

    assert await named(drafts="ngram") == (("ngram",), True)
    assert await named(drafts="ngram", draft_at="target") == (("ngram",), True)
    assert await named(drafts="ngram", draft_at="gateway") == (("ngram",), False)
    table = f"table:{file}"
    assert await named(drafts=f"{table},ngram") == (("table:target", "ngram"), False)
    with pytest.raises(ConfigError, match=r"does not run drafter 'table:.*--draft table:"):
        await named(drafts=table, draft_at="target")


async def test_a_drafter_that_could_is_kept_from_drafting_ahead_by_the_settings(file) -> None:
    spec = f"table:{file}"
    for ahead, expected in (("auto", True), ("never", False)):
        configured = load_settings(
            None, {"engine": {"target": spec}, "speculation": {"drafts": spec, "ahead": ahead}}
        )
        pipeline = await create.create_pipeline(configured)
        assert pipeline._drafters["table:target"][1].ahead is expected
        await pipeline.close()


async def test_a_drafter_that_cannot_say_what_it_is_is_closed_with_the_rest(
    file, monkeypatch
) -> None:
    class Silent(ScriptedDrafter):
        async def describe(self):
            raise ConfigError("it does not say")

    target, silent = Elsewhere(table_target(file), "ngram"), Silent(lambda view, k: ())
    first = ScriptedDrafter(lambda view, k: (), name="first")
    drafters = iter([first, silent])
    monkeypatch.setattr(create, "create_target", lambda settings, progress: (target, None))
    monkeypatch.setattr(create, "create_drafter", lambda *_, **__: next(drafters))
    with pytest.raises(ConfigError, match="does not say"):
        await create.create_pipeline(load_settings(None, {"speculation": {"drafts": "ngram,a,b"}}))
    assert (first.closed, silent.closed) == (True, True)
