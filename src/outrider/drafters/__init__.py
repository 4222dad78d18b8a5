"""Drafters: whatever guesses what comes next."""

from outrider.drafters.base import CachingDrafter, DeclaringDrafter, Drafter, SessionView
from outrider.drafters.create import create_drafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.pace import TimedDrafter
from outrider.drafters.prediction import PREDICTION, PredictionDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.drafters.table import TableDrafter

__all__ = [
    "PREDICTION",
    "CachingDrafter",
    "DeclaringDrafter",
    "Drafter",
    "NgramDrafter",
    "PredictionDrafter",
    "SessionView",
    "SuffixDrafter",
    "TableDrafter",
    "TimedDrafter",
    "create_drafter",
]
