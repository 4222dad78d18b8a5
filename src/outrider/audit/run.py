"""The audit: meet the server, sample, repeat, judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from outrider.audit.arms import Arm, Drafts, agree, set_up
from outrider.audit.findings import Report
from outrider.audit.plan import AuditPlan
from outrider.audit.repeats import greedy_finding, seeded_finding
from outrider.audit.sampled import draw_samples, weigh
from outrider.audit.verdict import judge
from outrider.endpoints import Endpoint, base_url, connect
from outrider.errors import RequestError

__all__ = ["Progress", "run_audit"]

Progress = Callable[[str, int, int], None]
"""Told, now and then: which part, how much of it is done, out of how much."""


async def run_audit(plan: AuditPlan, rng: np.random.Generator, progress: Progress) -> Report:
    """Audit a server.

    Args:
        plan: what is asked.
        rng: decides the order of requests and draws the null tables; the server's own noise is its
            own.
        progress: told how it goes.

    Raises:
        ConfigError: an address is none.
        RequestError: the server does not take the audit's requests.
        TargetFailed: it cannot be reached, or fails.
    """
    urls = [plan.url] if plan.baseline is None else [plan.url, plan.baseline]
    async with connect(
        *urls, api_key=plan.api_key, timeout_s=plan.timeout_s, concurrency=plan.concurrency
    ) as endpoints:
        arms = await _meet(plan, endpoints)
        samples = []
        total, done = 2 * plan.samples * len(plan.prompts), 0

        def advance(drawn: int) -> None:
            nonlocal done
            done += drawn
            progress("sampling", done, total)

        for prompt in plan.prompts:
            samples.append(await draw_samples(plan, prompt, arms, rng, advance))
        greedy, seeded = [], []
        greedy_drafts = (Drafts(), Drafts())
        for index, prompt in enumerate(plan.prompts, 1):
            greedy.append(await greedy_finding(plan, prompt, arms, greedy_drafts))
            seeded.append(await seeded_finding(plan, prompt, arms))
            progress("greedy and seeded", index, len(plan.prompts))
        sampled, together = weigh(plan, samples, rng)
        report = Report(
            url=arms[0].endpoint.url,
            baseline=None if plan.baseline is None else base_url(plan.baseline),
            model=arms[0].model,
            ids=arms[0].ids,
            samples=plan.samples,
            tokens=plan.tokens,
            alpha=plan.alpha,
            sampled=sampled,
            together=together,
            greedy=greedy,
            seeded=seeded,
            greedy_drafts=greedy_drafts[0],
            plain_drafted=sum(drawn.drafts[1].drafted for drawn in samples)
            + greedy_drafts[1].drafted,
            retries=sum(endpoint.retries for endpoint in endpoints),
        )
    verdict, reasons = judge(report)
    return replace(report, verdict=verdict, reasons=reasons)


async def _meet(plan: AuditPlan, endpoints: list[Endpoint]) -> tuple[Arm, Arm]:
    """Both sides, speaking as each server understands."""
    fast, plain = endpoints[0], endpoints[-1]
    model = plan.model or await fast.only_model()
    if plan.baseline is not None:
        plain_model = plan.baseline_model or await plain.only_model()
        one, _ = await set_up(plan, fast, model, {})
        other, _ = await set_up(plan, plain, plain_model, {})
        return agree(one, other)
    one, answer = await set_up(
        plan, fast, model, {"speculation": {**plan.speculation, "enabled": True}}
    )
    if answer.speculation is None:
        raise RequestError(
            f"{fast.url} does not say how it speculated, so it is not Outrider and speculation "
            "cannot be switched per request; name an endpoint of the same model that does not "
            "speculate with --baseline"
        )
    return agree(one, replace(one, extra={"speculation": {"enabled": False}}))
