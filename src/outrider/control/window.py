"""Lookahead from the acceptance of the last few rounds: up when drafts hold, down when not."""

from __future__ import annotations

from collections import deque

from outrider.control.base import Plan, RoundOutcome, RoundView

__all__ = ["WindowController"]

_MAX_DOUBLED = 16


class WindowController:
    """One more token of lookahead while the window's mean acceptance is high, one less while low.

    At 0 the target runs alone, in stretches; beside each stretch a short shadow draft is scored
    against what the target commits, so that the lookahead can rise again without ever costing a
    round.

    Args:
        initial: lookahead of the first round.
        minimum: never below; 0 allows plain decoding.
        maximum: never above.
        window: rounds that count.
        raise_above: mean acceptance above which one is added.
        lower_below: mean acceptance below which one is taken.
        stretch: tokens that the target decodes alone between two shadow drafts; doubled after each
            that was no better than a lookahead of 0 deserves, up to 16 times as many.
        shadow: tokens of a shadow draft.
    """

    def __init__(
        self,
        *,
        initial: int = 4,
        minimum: int = 0,
        maximum: int = 16,
        window: int = 8,
        raise_above: float = 0.80,
        lower_below: float = 0.35,
        stretch: int = 16,
        shadow: int = 4,
    ) -> None:
        if not 0 <= minimum <= maximum:
            raise ValueError(f"minimum {minimum} and maximum {maximum} leave no lookahead")
        self._lookahead = min(max(initial, minimum), maximum)
        self._minimum = minimum
        self._maximum = maximum
        self._raise_above = raise_above
        self._lower_below = lower_below
        self._stretch = self._first_stretch = stretch
        self._shadow = shadow
        self._rates: deque[float] = deque(maxlen=window)

    @property
    def lookahead(self) -> int:
        return self._lookahead

    def choose(self, view: RoundView) -> Plan:
        return self._choose(view).because("window")

    def _choose(self, view: RoundView) -> Plan:
        if self._maximum == 0 or view.max_draft_tokens == 0:
            return Plan(lookahead=0, run=view.remaining - 1)
        if self._lookahead == 0:
            run = min(self._stretch, view.remaining) - 1
            return Plan(lookahead=0, run=run, shadow=min(self._shadow, view.max_draft_tokens))
        return Plan(lookahead=min(self._lookahead, view.max_draft_tokens))

    def observe(self, outcome: RoundOutcome) -> None:
        if outcome.drafted == 0:
            return
        rate = outcome.accepted / outcome.drafted
        self._pace_shadows(outcome, rate)
        self._rates.append(rate)
        if len(self._rates) < (self._rates.maxlen or 1):
            return
        mean = sum(self._rates) / len(self._rates)
        if mean > self._raise_above:
            self._lookahead = min(self._lookahead + 1, self._maximum)
        elif mean < self._lower_below:
            self._lookahead = max(self._lookahead - 1, self._minimum)

    def _pace_shadows(self, outcome: RoundOutcome, rate: float) -> None:
        """Ask ever more rarely while shadow drafts fail: a model's take the target's time."""
        if outcome.shadow and rate < self._lower_below:
            self._stretch = min(2 * self._stretch, _MAX_DOUBLED * self._first_stretch)
        else:
            self._stretch = self._first_stretch
