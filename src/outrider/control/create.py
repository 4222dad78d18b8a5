"""Which controller a session gets."""

from __future__ import annotations

from outrider.config import SpeculationSettings
from outrider.control.base import LookaheadController
from outrider.control.fixed import FixedController
from outrider.control.fleet import Fleet
from outrider.control.goodput import GoodputController
from outrider.control.window import WindowController

__all__ = ["create_controller"]


def create_controller(
    settings: SpeculationSettings,
    *,
    max_lookahead: int | None = None,
    fleet: Fleet | None = None,
) -> LookaheadController:
    """A fresh controller for one session.

    Args:
        settings: the configured kind and bounds.
        max_lookahead: a tighter bound asked for by the request; 0 decodes plainly.
        fleet: what the goodput controllers of one drafter share, made for `settings.max_lookahead`;
            None is for a session that learns alone.
    """
    maximum = settings.max_lookahead
    if max_lookahead is not None:
        maximum = min(maximum, max_lookahead)
    if settings.controller == "fixed":
        ahead = settings.ahead == "always"
        return FixedController(min(settings.lookahead, maximum), ahead=ahead)
    if settings.controller == "window":
        return WindowController(
            initial=settings.lookahead,
            minimum=min(settings.min_lookahead, maximum),
            maximum=maximum,
            window=settings.window,
        )
    return GoodputController(
        Fleet(settings.max_lookahead) if fleet is None else fleet,
        maximum=maximum,
        initial=settings.lookahead,
    )
