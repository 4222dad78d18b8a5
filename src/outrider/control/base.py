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
    """

    remaining: int
    max_draft_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next round does.

    Attributes:
        lookahead: tokens to draft; 0 lets the target run alone.
        run: tokens that the target decodes alone after judging the draft.
        shadow: tokens to draft off the critical path while the target runs, to be scored against
            what it commits. Only with lookahead 0.
    """

    lookahead: int
    run: int = 0
    shadow: int = 0


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What came of a draft.

    Attributes:
        drafted: tokens that were judged, at least 1.
        accepted: how many of them were right.
        shadow: scored beside the critical path, not verified.
    """

    drafted: int
    accepted: int
    shadow: bool = False


class LookaheadController(Protocol):
    """Chooses the lookahead of one session, round by round."""

    def choose(self, view: RoundView) -> Plan:
        """The plan for the next round."""
        ...

    def observe(self, outcome: RoundOutcome) -> None:
        """Learn from a round, or from a shadow draft."""
        ...
