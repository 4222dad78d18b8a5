"""How many tokens to draft, round by round."""

from outrider.control.base import LookaheadController, Plan, RoundOutcome, RoundView
from outrider.control.create import create_controller
from outrider.control.fixed import FixedController
from outrider.control.window import WindowController

__all__ = [
    "FixedController",
    "LookaheadController",
    "Plan",
    "RoundOutcome",
    "RoundView",
    "WindowController",
    "create_controller",
]
