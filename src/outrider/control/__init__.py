"""How many tokens to draft, round by round."""

from outrider.control.base import (
    Decision,
    ExplainingController,
    LookaheadController,
    Plan,
    RoundOutcome,
    RoundView,
)
from outrider.control.create import create_controller
from outrider.control.fixed import FixedController
from outrider.control.fleet import Fleet
from outrider.control.goodput import GoodputController
from outrider.control.window import WindowController

__all__ = [
    "Decision",
    "ExplainingController",
    "FixedController",
    "Fleet",
    "GoodputController",
    "LookaheadController",
    "Plan",
    "RoundOutcome",
    "RoundView",
    "WindowController",
    "create_controller",
]
