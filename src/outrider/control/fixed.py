"""Always the same lookahead."""

from __future__ import annotations

from outrider.control.base import Plan, RoundOutcome, RoundView

__all__ = ["FixedController"]


class FixedController:
    """Drafts `lookahead` tokens in every round; 0 decodes plainly.

    Args:
        lookahead: tokens.
        ahead: make each draft while the target judges the one before, where that can be done.
    """

    def __init__(self, lookahead: int, *, ahead: bool = False) -> None:
        self._lookahead = lookahead
        self._ahead = ahead

    def choose(self, view: RoundView) -> Plan:
        if self._lookahead == 0 or view.max_draft_tokens == 0:
            return Plan(lookahead=0, run=view.remaining - 1, why="fixed")
        lookahead = min(self._lookahead, view.max_draft_tokens)
        return Plan(lookahead=lookahead, ahead=self._ahead and view.can_ahead, why="fixed")

    def observe(self, outcome: RoundOutcome) -> None:
        """A fixed lookahead learns nothing."""
