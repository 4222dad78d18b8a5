"""Drafters: whatever guesses what comes next."""

from outrider.drafters.base import DeclaringDrafter, Drafter, SessionView
from outrider.drafters.create import create_drafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.table import TableDrafter

__all__ = [
    "DeclaringDrafter",
    "Drafter",
    "NgramDrafter",
    "SessionView",
    "TableDrafter",
    "create_drafter",
]
