"""Audits over real sockets: honest servers pass, liars are caught, silence proves nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider.audit import AuditPlan, Prompt, Report, Verdict, run_audit
from outrider.errors import RequestError, TargetFailed

from .servers import SmallServer, gateway

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("fixed_noise")]

PROMPTS = (Prompt("one", (0, 1)), Prompt("two", (3, 2, 3, 2, 3)))


async def audit(url: str, **settings: Any) -> Report:
    plan = AuditPlan(
        url,
        **{
            "prompts": PROMPTS,
            "samples": 120,
            "tokens": 2,
            "generate": 4,
            "greedy_tokens": 12,
            "concurrency": 1,
            "copies": 16,
            **settings,
        },
    )
    return await run_audit(plan, np.random.default_rng(0), lambda *_: None)


async def audit_of(server: SmallServer, **settings: Any) -> Report:
    async with server.running():
        return await audit(server.url, **settings)


async def test_the_real_gateway_passes_with_drafts_judged(write_table) -> None:
    target, draft = write_table("target", seed=1), write_table("draft", seed=1, scale=1.2)
    async with gateway(target, f"table:{draft}") as served:
        report = await audit(served.url)
    assert report.verdict is Verdict.NO_DIFFERENCE, report.reasons
    assert report.drafted > 120
    assert report.ids
    assert all(finding.retold.differs_at is None for finding in report.greedy)
    assert all(finding.honoured and finding.promised for finding in report.seeded)
    assert sum(finding.comparison.counts.sum() for finding in report.sampled) == 4 * 120


async def test_the_real_gateway_without_a_drafter_proves_nothing(write_table) -> None:
    async with gateway(write_table("target")) as served:
        report = await audit(served.url, samples=40)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "nothing was drafted, so this audit shows nothing" in report.reasons[0]


async def test_two_gateways_of_one_model_pass_without_any_switch(write_table) -> None:
    target = write_table("target", seed=1)
    async with (
        gateway(target, f"table:{target}") as fast,
        gateway(target) as plain,
    ):
        report = await audit(fast.url, baseline=plain.url)
    assert report.verdict is Verdict.NO_DIFFERENCE, report.reasons
    assert report.drafted > 0


async def test_gateways_of_two_models_differ(write_table) -> None:
    one, other = write_table("one", seed=1), write_table("other", seed=2)
    async with gateway(one) as fast, gateway(other) as plain:
        report = await audit(fast.url, baseline=plain.url, samples=80)
    assert report.verdict is Verdict.DIFFERS


async def test_a_server_that_shifts_its_distribution_is_caught() -> None:
    report = await audit_of(SmallServer(lie=0.15), samples=600)
    assert report.verdict is Verdict.DIFFERS
    assert all(finding.adjusted <= 0.01 for finding in report.sampled)
    cell, on, off = report.sampled[0].comparison.worst(1)[0]
    assert cell.pieces[0] == 0
    assert on > off


async def test_a_server_that_changes_greedy_output_is_caught_with_the_place() -> None:
    report = await audit_of(SmallServer(greedy_lie=9))
    assert report.verdict is Verdict.DIFFERS
    assert "greedy output differs on 'one', and is said to be identical" in report.reasons
    found = report.greedy[0]
    assert found.retold.differs_at == 9
    assert found.retold.without.startswith("4 ")
    assert found.retold.with_speculation.startswith("0 ")
    assert found.repeats


async def test_a_server_that_never_repeats_itself_is_not_blamed_on_speculation() -> None:
    report = await audit_of(SmallServer(greedy_noise=True))
    assert report.verdict is Verdict.NO_DIFFERENCE
    assert any("changes from run to run" in reason for reason in report.reasons)


async def test_a_server_that_breaks_a_promise_about_seeds_is_caught() -> None:
    report = await audit_of(SmallServer(seed_lie=True))
    assert report.verdict is Verdict.DIFFERS
    assert "output with a seed differs on 'one', and is said not to" in report.reasons


async def test_a_server_that_ignores_seeds_is_only_told_so() -> None:
    report = await audit_of(SmallServer(seeds=False))
    assert report.verdict is Verdict.NO_DIFFERENCE
    assert not any(finding.honoured for finding in report.seeded)


async def test_without_ids_texts_are_compared_and_a_lie_still_shows() -> None:
    honest = await audit_of(SmallServer(ids=False))
    assert (honest.ids, honest.verdict) == (False, Verdict.NO_DIFFERENCE)
    lying = await audit_of(SmallServer(ids=False, lie=0.3))
    assert lying.verdict is Verdict.DIFFERS


async def test_a_server_that_takes_no_copies_is_asked_for_one_at_a_time() -> None:
    server = SmallServer(max_copies=1)
    report = await audit_of(server, samples=40, concurrency=4)
    assert {finding.comparison.counts.sum() for finding in report.sampled} == {80}
    assert server.asked[-1].get("n", 1) == 1


async def test_drafts_where_there_should_be_none_make_it_inconclusive() -> None:
    report = await audit_of(SmallServer(always_drafts=True))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "the switch has no effect" in report.reasons[0]


async def test_a_baseline_that_speculates_makes_it_inconclusive(write_table) -> None:
    target = write_table("target", seed=1)
    async with gateway(target, f"table:{target}") as fast:
        report = await audit(fast.url, baseline=fast.url, samples=40)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert f"{fast.url}/v1 speculates too" in report.reasons[0]


async def test_too_few_samples_are_inconclusive() -> None:
    report = await audit_of(SmallServer(), samples=20)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "20 samples are too few" in report.reasons[0]


async def test_against_a_baseline_no_extension_is_sent_and_silence_on_drafts_is_told() -> None:
    server, plain = SmallServer(speaks=False), SmallServer(speaks=False)
    async with server.running(), plain.running():
        report = await audit(server.url, baseline=plain.url)
    assert report.verdict is Verdict.NO_DIFFERENCE
    assert any("does not say whether it drafted" in reason for reason in report.reasons)
    assert not any("speculation" in body for body in server.asked + plain.asked)


async def test_the_arms_take_turns() -> None:
    server = SmallServer()
    await audit_of(server, samples=80, copies=8)
    sides = [body["speculation"]["enabled"] for body in server.asked[1:21]]
    assert all(one != other for one, other in zip(sides[::2], sides[1::2], strict=True))
    assert len(set(sides[::2])) == 2  # who goes first is drawn


async def test_a_server_that_is_not_outrider_needs_a_baseline() -> None:
    with pytest.raises(RequestError, match="--baseline"):
        await audit_of(SmallServer(speaks=False))


async def test_a_server_that_dies_half_way_ends_the_audit_in_one_line(monkeypatch) -> None:
    monkeypatch.setattr("outrider.endpoints.client._RETRIES", 0)

    class Dying(SmallServer):
        async def complete(self, request):
            if len(self.asked) > 30:
                self.refuse = [500]
            return await super().complete(request)

    with pytest.raises(TargetFailed, match="answered 500"):
        await audit_of(Dying(), concurrency=4)


async def test_parameters_and_chats_reach_the_server() -> None:
    server = SmallServer()
    chat = Prompt("chat", messages=({"role": "user", "content": "Hi"},))
    params = {"temperature": 0.5, "presence_penalty": 0.25}
    await audit_of(
        server, prompts=(chat,), params=params, samples=8, speculation={"drafter": "ngram"}
    )
    sampled = server.asked[0]
    assert sampled["presence_penalty"] == 0.25
    assert sampled["messages"] == [{"role": "user", "content": "Hi"}]
    assert sampled["speculation"] == {"drafter": "ngram", "enabled": True}
    assert any(body["temperature"] == 0 for body in server.asked)


async def test_a_server_that_claims_ever_new_things_is_not_remembered_without_end() -> None:
    class Chatty(SmallServer):
        def _account(self, body, on):
            return super()._account(body, on) | {"reason": f"for reason {len(self.asked)}"}

    report = await audit_of(Chatty(), copies=2)
    for finding in report.sampled:
        assert len(finding.drafts.claims) == 20
