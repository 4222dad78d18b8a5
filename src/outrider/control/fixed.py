"""Always the same lookahead."""

from __future__ import annotations

from outrider.control.base import Plan, RoundOutcome, RoundView

__all__ = ["FixedController"]


class FixedController:
    """Drafts `lookahead` tokens in every round; 0 decodes plainly."""

    def __init__(self, lookahead: int) -> None:
        self._lookahead = lookahead

    def choose(self, view: RoundView) -> Plan:
        if self._lookahead == 0 or view.max_draft_tokens == 0:
            return Plan(lookahead=0, run=view.remaining - 1)
        return Plan(lookahead=min(self._lookahead, view.max_draft_tokens))

    def observe(self, outcome: RoundOutcome) -> None:
        """A fixed lookahead learns nothing."""
