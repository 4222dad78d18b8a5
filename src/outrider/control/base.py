"""The contract of a lookahead controller: how many tokens to draft in the next round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["LookaheadController", "Plan", "RoundOutcome", "RoundView"]


@dataclass(frozen=True, slots=True)
class RoundView:
    """What a controller may look at before a round.

    Attributes:
        remaining: output tokens left in the budget, at least 1.
        max_draft_tokens: what the budget, the target and the request allow; a larger choice is
            clamped.
        can_ahead: the drafter can draft behind a guess: see `Plan.ahead`.
    """

    remaining: int
    max_draft_tokens: int
    can_ahead: bool = False


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
    """

    lookahead: int
    run: int = 0
    shadow: int = 0
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What one answer of the target, or a shadow draft, tells. All times are in seconds.

    Attributes:
        drafted: tokens that were judged; 0 for a step of plain decoding.
        accepted: how many of them were right.
        shadow: scored beside the critical path, not verified; `draft_s` is what drafting took, and
            the fields below it are not set.
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
