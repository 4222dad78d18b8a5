"""What a controller is told of each answer of the target, and when."""

from __future__ import annotations

import time

from outrider.control import Plan, RoundOutcome
from outrider.pipeline.session import Session
from outrider.types import Verification

__all__ = ["Outcomes"]


class Outcomes:
    """Times the rounds of one session and reports to its controller.

    Reported are the answers to rounds that the controller planned, and the further answers of
    every run. Not the first token, whose time is the prompt's; nor a run that the controller did
    not ask for, whose first answer it would take for that to its last plan.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._planned = False
        self._further = False
        self._ahead: bool | None = None
        self._draft_s = 0.0
        self._last = 0.0

    def planned(self, plan: Plan) -> Plan:
        """The controller planned the next round."""
        self._planned = True
        return plan

    def made_ahead(self, came_true: bool) -> None:
        """The next draft was made ahead: it serves, or it was in vain."""
        self._ahead = came_true

    def asked(self, began: float) -> None:
        """The target is asked now; the session waited for its draft since `began`."""
        self._last = time.perf_counter()
        self._draft_s = self._last - began
        self._further = False

    def observe(self, answer: Verification) -> None:
        """Report an answer, already committed."""
        now = time.perf_counter()
        further, self._further = self._further, True
        if answer.position > 0 and (further or self._planned):
            self._session.controller.observe(
                RoundOutcome(
                    answer.drafted,
                    answer.accepted,
                    draft_s=0.0 if further else self._draft_s,
                    elapsed_s=now - self._last,
                    step_s=answer.step_s,
                    batch_size=answer.batch_size,
                    batch_tokens=answer.batch_tokens,
                    context=len(self._session.tokens) - len(answer.token_ids),
                    further=further,
                    ahead=None if further else self._ahead,
                )
            )
        self._last = now
        self._planned, self._ahead = False, None
