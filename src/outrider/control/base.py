"""The contract of a lookahead controller: how many tokens to draft in the next round."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

__all__ = [
    "Decision",
    "ExplainingController",
    "LookaheadController",
    "Plan",
    "RoundOutcome",
    "RoundView",
]


@dataclass(frozen=True, slots=True)
class RoundView:
    """What a controller may look at before a round.

    Attributes:
        remaining: output tokens left in the budget, at least 1.
        max_draft_tokens: what the budget, the target and the request allow; a larger choice is
            clamped.
        can_ahead: the drafter can draft behind a guess: see `Plan.ahead`.
        context: tokens that the session holds.
    """

    remaining: int
    max_draft_tokens: int
    can_ahead: bool = False
    context: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next round does.

    Attributes:
        lookahead: tokens to draft; 0 lets the target run alone.
        run: tokens that the target decodes alone after judging the draft.
        shadow: tokens to draft off the critical path while the target runs, to be scored against
            what it commits. Only with lookahead 0.
        ahead: while the target judges this draft, draft the next one, as if all of this one held
            and the bonus token were what the drafter expects. Only with a lookahead above 0.
        why: a word for who reads traces; empty if the controller explains itself.
    """

    lookahead: int
    run: int = 0
    shadow: int = 0
    ahead: bool = False
    why: str = field(default="", compare=False)

    def because(self, why: str) -> Plan:
        """The same plan, with this word for it."""
        return replace(self, why=why)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a session's last plan rests on.

    Attributes:
        lookahead: tokens to draft.
        kind: `first` before any draft was judged, `draft`, `plain`, `reading`: the target runs
            while the drafter reads the prompt, or `trial`: a round that is expected to lose a
            little, to learn whether drafting pays.
        ahead: the next draft is made while the target judges.
        goodput: tokens per second that this session would get, by lookahead from 0 on, as far as
            they were compared.
        survival: per position, right, and all before it too.
        price: tokens that other sessions lose per second of a longer step.
    """

    lookahead: int
    kind: Literal["first", "draft", "plain", "reading", "trial"]
    ahead: bool = False
    goodput: tuple[float, ...] = ()
    survival: tuple[float, ...] = ()
    price: float = 0.0


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What one answer of the target, or a shadow draft, tells. All times are in seconds.

    Attributes:
        drafted: tokens that were judged; 0 for a step of plain decoding.
        accepted: how many of them were right.
        shadow: scored beside the critical path, not verified; `draft_s` is what drafting took,
            `context` what it was drafted behind, and the other fields below are not set.
        draft_s: what the session waited for the draft; next to nothing if it was made ahead.
        elapsed_s: from the question to this answer; for a `further` answer, since the one before.
        step_s: what the target's step took, queueing and trip apart.
        batch_size: sessions that shared the step.
        batch_tokens: tokens computed in it.
        context: tokens that the session held before.
        further: the target ran on alone to this answer, so no trip of a question is in it.
        ahead: whether the draft was made ahead; None if none was asked for ahead.
    """

    drafted: int
    accepted: int
    shadow: bool = False
    draft_s: float = 0.0
    elapsed_s: float = 0.0
    step_s: float = 0.0
    batch_size: int = 1
    batch_tokens: int = 1
    context: int = 0
    further: bool = False
    ahead: bool | None = None


class LookaheadController(Protocol):
    """Chooses the lookahead of one session, round by round."""

    def choose(self, view: RoundView) -> Plan:
        """The plan for the next round."""
        ...

    def observe(self, outcome: RoundOutcome) -> None:
        """Learn from an answer of the target, plain ones too, or from a shadow draft."""
        ...


@runtime_checkable
class ExplainingController(LookaheadController, Protocol):
    """A controller that can say what its last plan rests on."""

    def explain(self) -> Decision:
        """What the last plan rests on."""
        ...
