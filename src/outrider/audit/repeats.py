"""Parts 2 and 3: outputs that speculation must not change at all, greedy and seeded ones."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from outrider.audit.arms import Arm, Drafts
from outrider.audit.findings import GreedyFinding, Retold, SeededFinding
from outrider.audit.plan import AuditPlan, Prompt
from outrider.endpoints import Choice, Completion, Refused

__all__ = ["greedy_finding", "seeded_finding"]

_SEED = 20_240_229
_SHOWN_CHARS = 24


async def greedy_finding(
    plan: AuditPlan, prompt: Prompt, arms: tuple[Arm, Arm], drafts: tuple[Drafts, Drafts]
) -> GreedyFinding:
    """One prompt at temperature 0, with speculation and without.

    If they differ, the one without speculation is asked for again, to tell whether the server
    repeats itself at all.

    Args:
        plan: how long the outputs are.
        prompt: which.
        arms: with speculation, without.
        drafts: what each arm says of its drafts is added here.
    """
    params = {**plan.params, "temperature": 0}
    answers = [await arm.ask(prompt, plan.greedy_tokens, params) for arm in arms]
    for told, answer in zip(drafts, answers, strict=True):
        told.add(answer)
    retold = _retold(arms[0], *answers)
    if retold.differs_at is None:
        return GreedyFinding(prompt.name, retold)
    again = await arms[1].ask(prompt, plan.greedy_tokens, params)
    repeats = _retold(arms[1], again, answers[1]).differs_at is None
    return GreedyFinding(prompt.name, retold, repeats)


async def seeded_finding(plan: AuditPlan, prompt: Prompt, arms: tuple[Arm, Arm]) -> SeededFinding:
    """One prompt with a fixed seed: without speculation twice and, if these agree, with it."""
    params: Mapping[str, Any] = {**plan.params, "seed": _SEED}
    try:
        one = await arms[1].ask(prompt, plan.greedy_tokens, params)
        other = await arms[1].ask(prompt, plan.greedy_tokens, params)
        if _retold(arms[1], one, other).differs_at is not None:
            return SeededFinding(prompt.name, honoured=False, retold=None, promised=False)
        fast = await arms[0].ask(prompt, plan.greedy_tokens, params)
    except Refused:
        return SeededFinding(prompt.name, honoured=False, retold=None, promised=False)
    account = fast.account
    promised = account is not None and account.exact == "identical"
    return SeededFinding(prompt.name, True, _retold(arms[0], fast, one), promised)


def _retold(arm: Arm, fast: Completion, plain: Completion) -> Retold:
    ours, theirs = fast.choices[0], plain.choices[0]
    mine, others = arm.outcome(ours), arm.outcome(theirs)
    for index, (one, other) in enumerate(zip_longest(mine, others)):
        if one != other:
            return Retold(len(others), index, *_shown(one, other, ours, theirs))
    return Retold(len(others), None)


def _shown(
    one: int | str | None, other: int | str | None, ours: Choice, theirs: Choice
) -> tuple[str, str]:
    """What stands at the first difference: the token, and the text from there on."""
    shown = []
    for token, rest in ((one, ours.apart(theirs)), (other, theirs.apart(ours))):
        cut = f"'{rest[:_SHOWN_CHARS]}'" + ("..." if len(rest) > _SHOWN_CHARS else "")
        if token is None:
            cut = "the end"
        shown.append(f"{token} {cut}" if isinstance(token, int) else cut)
    return shown[0], shown[1]
