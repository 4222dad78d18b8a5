"""A session's drafts for ratio verification: drawn, never dropped, checked against their odds."""

from __future__ import annotations

import structlog

from outrider.metrics import Metrics
from outrider.pipeline.asking import Asker, DrawLost
from outrider.pipeline.session import Session
from outrider.types import Draft, DrafterInfo, SampledDraft, VerificationMethod
from outrider.verify import Calibration, choose_method

__all__ = ["Draws"]

_log = structlog.get_logger("outrider.drafting")


class Draws:
    """Draws drafts, and decides how the session's next draft is judged.

    Args:
        session: whose drafts these are.
        drafter: who draws, with what it says of itself; None if nobody does.
        calibration: whether what this drafter draws fits what it declares, over all sessions.
        metrics: where a demotion is counted.

    Attributes:
        pending: a draft that was drawn and has not been judged.
    """

    def __init__(
        self,
        session: Session,
        drafter: tuple[Asker, DrafterInfo] | None,
        calibration: Calibration | None,
        metrics: Metrics,
    ) -> None:
        self._session = session
        self._drafter = drafter
        self._calibration = calibration
        self._metrics = metrics
        self._lost = False
        self.pending: SampledDraft | None = None

    @property
    def method(self) -> VerificationMethod:
        """How the next draft is judged; settled before it is drawn."""
        trusted = self._calibration is None or not self._calibration.tripped
        return choose_method(
            self._session.opening.sampling,
            None if self._drafter is None else self._drafter[1],
            self._session.preferred,
            trusted=trusted and not self._lost,
        )

    async def draw(self, max_tokens: int) -> Draft | SampledDraft:
        """A draft, however long it takes.

        After a fault that may have lost a drawn draft, the session matches.

        Raises:
            DraftFailed: nothing was drawn, or it is lost.
        """
        assert self._drafter is not None  # noqa: S101 # without one no method is a ratio
        try:
            draft = await self._drafter[0].draw(self._session.view(), max_tokens)
        except DrawLost:
            self._lost = True
            raise
        if isinstance(draft, SampledDraft):
            if not self._fits(draft):
                return Draft(draft.token_ids, draft.source)  # to be matched, which is always exact
            self.pending = draft
        return draft

    def judged(self) -> None:
        """The target judged the draft."""
        self.pending = None

    def _fits(self, draft: SampledDraft) -> bool:
        """Whether what this drafter drew, here and before, fits what it declared."""
        calibration = self._calibration
        assert calibration is not None  # noqa: S101 # every drafter has one
        before = calibration.tripped
        calibration.observe(draft)
        if calibration.tripped and not before:
            name = self._session.stats.drafter
            self._metrics.drafters_demoted.labels(name).inc()
            _log.error(
                "drafter_demoted",
                drafter=name,
                z=round(calibration.z, 1),
                drafted=calibration.drafted,
                reason="its tokens do not fit the distribution that it declares; from now on its "
                "drafts are matched, which is exact whatever it drafts",
            )
        return not calibration.tripped
