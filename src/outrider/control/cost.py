"""What drafting, a step of the target and a trip to it take, learned from what rounds took."""

from __future__ import annotations

from outrider.control.base import RoundOutcome
from outrider.control.curve import Curve, RobustMean

__all__ = ["CostModel"]

_STEP_S = 0.02
_STEP_GROWTH = 0.02
_DRAFT_GROWTH = 1000.0
_FORGET = 0.998
_LOAD = 0.25


class CostModel:
    """Measured times of one drafter and its target, shared by all of their sessions. In seconds.

    Before anything was measured drafts and trips are free, and a step takes a little longer with
    every token, so that the first rounds draft. Hiccups do not count for much, and what changes is
    followed within some twenty rounds: see `RobustMean`. The context's length is no variable of its
    own: it is the same for every choice that a session has, and is followed as a change.
    """

    def __init__(self) -> None:
        self._step = Curve(growth=_STEP_GROWTH, initial=_STEP_S)
        self._draft = Curve(growth=_DRAFT_GROWTH, initial=0.0)
        self._read = RobustMean()  # per token
        self._first: RoundOutcome | None = None
        self._taken = RobustMean()
        self._trip = RobustMean()
        self._beside = RobustMean()
        self._drag = RobustMean()
        self._wait = RobustMean()
        self._vain = RobustMean()
        self._nothing = RobustMean()
        self._sharers: float | None = None
        self._others = 0.0
        self._least = 1  # tokens of a step in which this session has no draft

    @property
    def trip_s(self) -> float:
        """What a question takes beside its step: the network and waiting in a queue."""
        return max(self._trip.value, 0.0)

    @property
    def plain_s(self) -> float:
        """From one token of a run alone to the next."""
        return self.step_s(0) + max(self._beside.value, 0.0)

    @property
    def sharers(self) -> float:
        """Other sessions that share a step."""
        return self._sharers or 0.0

    def draft_s(self, tokens: int) -> float:
        """Drafting so many tokens; for 0, finding that there is nothing, or waiting in vain."""
        return self._draft.at(tokens) if tokens else self._nothing.value

    def read_s(self, context: int) -> float:
        """What a session's first draft takes beyond others: its drafter reads so many tokens."""
        return self._read.value * context

    def lost_by_reading_s(self, context: int) -> float:
        """How much of that the target, which runs on beside it, comes to be late by."""
        return self.read_s(context) * self._taken.value

    def step_s(self, drafted: int) -> float:
        """A step of the target in which this session has a draft of so many tokens."""
        return self._step.at(self._least + drafted)

    def ahead_drag_s(self) -> float:
        """By how much a round takes longer for a draft that is made beside it."""
        return max(self._drag.value, 0.0)

    def ahead_wait_s(self, tokens: int) -> float:
        """What is still waited for a draft made ahead, behind one of so many tokens."""
        return max(self._late_s(tokens) + self._wait.value, 0.0)

    def ahead_vain_s(self, tokens: int) -> float:
        """The same where it does not serve, with drafting anew."""
        return max(self.draft_s(tokens) + self._late_s(tokens) + self._vain.value, 0.0)

    def _late_s(self, tokens: int) -> float:
        """How much longer the next draft, with the token before it, should take than the round."""
        return max(self.draft_s(tokens + 1) - self.step_s(tokens) - self.trip_s, 0.0)

    @property
    def awaits_draft(self) -> bool:
        """Whether the only draft so far was a session's first."""
        return self._first is not None

    def observe_shadow(self, outcome: RoundOutcome) -> None:
        """Learn from a draft beside the target: alone it would have taken no longer."""
        if outcome.draft_s < self.draft_s(outcome.drafted):
            self._draft.add(outcome.drafted, outcome.draft_s)

    def observe_beside_reading(self, outcome: RoundOutcome) -> None:
        """Learn from a token of a run beside a drafter that reads. Its time is not a usual one."""
        late_s = outcome.elapsed_s - self.plain_s
        self._taken.add(min(max(late_s / max(outcome.elapsed_s, 1e-9), 0.0), 1.0))

    def observe_read(self, outcome: RoundOutcome) -> None:
        """Learn from a session's first draft, once it is known what others take."""
        if not self._draft.measured:
            self._first = outcome
            return
        reading_s = outcome.draft_s - self.draft_s(outcome.drafted)
        self._read.add(max(reading_s, 0.0) / max(outcome.context, 1))

    def observe(self, outcome: RoundOutcome, *, asked: int, ahead: bool) -> None:
        """Learn from an answer of the target; shadow drafts have no times of rounds.

        Args:
            outcome: what it took.
            asked: tokens of lookahead that were asked for; 0 as well if the draft's time is not
                that of a draft like others.
            ahead: the next draft was made beside this round.
        """
        own = outcome.drafted + 1
        self._observe_load(outcome.batch_size - 1, outcome.batch_tokens - own)
        beside = outcome.elapsed_s - outcome.step_s
        if not ahead:
            self._step.add(max(outcome.batch_tokens, own), outcome.step_s)
        if outcome.further:
            self._beside.add(beside)
        elif ahead:
            # A drafter that shares the target's cores slows the step itself.
            usual = self._step.at(max(outcome.batch_tokens, own)) + self.trip_s
            self._drag.add(outcome.elapsed_s - usual)
        else:
            self._trip.add(beside)
            self._drag.value *= _FORGET
        if asked:
            self._observe_draft(outcome)

    def _observe_draft(self, outcome: RoundOutcome) -> None:
        tokens, seconds = outcome.drafted, outcome.draft_s
        if tokens == 0:
            self._nothing.add(seconds)
        elif outcome.ahead is None:
            self._draft.add(tokens, seconds)
            if self._first is not None:
                first, self._first = self._first, None
                self.observe_read(first)
        elif outcome.ahead:
            self._wait.add(seconds - self._late_s(tokens))
        else:
            self._vain.add(seconds - self._late_s(tokens) - self.draft_s(tokens))

    def _observe_load(self, sharers: int, tokens: int) -> None:
        """Loads change at once and measure without noise, so these follow more quickly."""
        if self._sharers is None:
            self._sharers, self._others = float(sharers), float(tokens)
        self._sharers += _LOAD * (sharers - self._sharers)
        self._others += _LOAD * (max(tokens, 0) - self._others)
        self._least = round(self._others) + 1
