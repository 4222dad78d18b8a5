"""The two sides of an audit, asked in the same words: with speculation and without."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from outrider.audit.plan import AuditPlan, Prompt
from outrider.audit.statistics import Outcome
from outrider.endpoints import Choice, Completion, Endpoint, Refused
from outrider.errors import RequestError

__all__ = ["Arm", "Drafts", "agree", "in_parallel", "set_up"]

_MAX_CLAIMS: Final = 20
"""A server that claims more than this is not worth remembering in full."""


@dataclass(slots=True)
class Drafts:
    """What a server said of its drafts in some of its answers.

    Attributes:
        told: whether it said anything.
        drafted, accepted: tokens.
        claims: how drafts were judged, what is said to hold, and under which condition; the first
            20 different ones.
    """

    told: bool = False
    drafted: int = 0
    accepted: int = 0
    claims: set[tuple[str | None, str | None, str | None]] = field(default_factory=set)

    def add(self, completion: Completion) -> None:
        account = completion.account
        if account is None:
            return
        self.told = True
        self.drafted += account.drafted_tokens
        self.accepted += account.accepted_tokens
        if account.drafted_tokens and len(self.claims) < _MAX_CLAIMS:
            self.claims.add((account.verification, account.exact, account.reason))


@dataclass(frozen=True, slots=True)
class Arm:
    """One side.

    Attributes:
        endpoint: who is asked.
        model: under which id.
        extra: fields of every request of this side.
        ids: the server gives token ids.
        copies: samples in one request.
    """

    endpoint: Endpoint
    model: str
    extra: Mapping[str, Any]
    ids: bool = True
    copies: int = 1

    async def ask(
        self, prompt: Prompt, max_tokens: int, params: Mapping[str, Any], *, copies: int = 1
    ) -> Completion:
        """`copies` samples behind `prompt`; raises as `Endpoint.complete` does."""
        body = {"model": self.model, **prompt.fields(), "max_tokens": max_tokens, **params}
        body |= self.extra
        if self.ids:
            body["return_token_ids"] = True
        if copies > 1:
            body["n"] = copies
        return await self.endpoint.complete(prompt.path, body)

    def outcome(self, choice: Choice, tokens: int | None = None) -> Outcome:
        """The first `tokens` tokens of a sample; pieces of its text if the server gives no ids."""
        if self.ids:
            return tuple((choice.token_ids or [])[:tokens])
        return choice.pieces(tokens)


async def set_up(
    plan: AuditPlan, endpoint: Endpoint, model: str, extra: Mapping[str, Any]
) -> tuple[Arm, Completion]:
    """Find out which requests a server takes; gives its first answer too.

    Raises:
        RequestError: it takes none, or misunderstands them.
        TargetFailed: it cannot be reached, or fails.
    """
    prompt = plan.prompts[0]
    arm = Arm(endpoint, model, extra, copies=min(plan.copies, plan.samples))
    while True:
        try:
            answer = await arm.ask(prompt, plan.generate, plan.params, copies=arm.copies)
            break
        except Refused as error:
            if arm.ids and "return_token_ids" in error.reason:
                arm = replace(arm, ids=False)
            elif arm.copies > 1:
                arm = replace(arm, copies=arm.copies // 2)
            elif arm.ids:
                arm = replace(arm, ids=False)
            else:
                advice = _advice(error.reason, arm)
                raise RequestError(f"{error}; the prompt was {prompt.name!r}{advice}") from None
    ids = arm.ids and all(choice.token_ids for choice in answer.choices)
    return replace(arm, ids=ids, copies=min(arm.copies, len(answer.choices))), answer


def _advice(reason: str, arm: Arm) -> str:
    if arm.extra and "speculation" in reason:
        return (
            "; if the server is not Outrider, name one of the same model that does not speculate "
            "with --baseline"
        )
    return " (give your own with --prompts, if it is the prompt)"


def agree(one: Arm, other: Arm) -> tuple[Arm, Arm]:
    """Both sides with what both can do, since their answers must be comparable."""
    ids, copies = one.ids and other.ids, min(one.copies, other.copies)
    return replace(one, ids=ids, copies=copies), replace(other, ids=ids, copies=copies)


async def in_parallel(jobs: Iterable[Callable[[], Awaitable[None]]], concurrency: int) -> None:
    """Do `jobs` in order, so many at a time. The first failure ends all and is raised."""
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            await job()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
