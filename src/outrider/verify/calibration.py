"""Does a drafter draw its tokens from what it declares? The runtime monitor of ratio mode.

Ratio verification is exact only then, and a drafter that declares wrongly biases the output in
silence. So a bet is kept against it. If it is honest, its likeliest token (the lowest id among
equals) is drawn with the declared probability q, whatever came before; so for every c

    the product, over rows, of  c^x / (1 - q + q c),  x = 1 where the likeliest token was drawn,

has conditional expectation 1 in every factor. It is the likelihood ratio of "the odds of that
token are really c times what is declared". An average of such products, over several c and over
the row from which the fault begins (row t with weight 1 / (t (t + 1)), so that a fault behind a
million good rows is still found), is a nonnegative martingale that starts at 1. By Ville's
inequality it ever reaches 1 / alpha with probability alpha at most: exactly, however long it runs
and however often it is looked at. A threshold on the familiar z, repeated for ever, would be
crossed by everyone.

The monitor finds mistakes, not malice: whoever draws the likeliest token as often as declared and
lies about the others passes.
"""

import math

import numpy as np

from outrider.types import DRAFT_TOTAL, SampledDraft

__all__ = ["Calibration"]

_SIZES = 2.0 ** np.arange(-4, 2)
_FACTORS = np.exp(np.concatenate([-_SIZES, _SIZES]))
"""The c that are bet on: from odds wrong by 6%, seen in some 10^5 rows, to wrong sevenfold."""


class Calibration:
    """Bets against one drafter. Not thread-safe.

    Args:
        alpha: probability that an honest drafter is ever accused.
    """

    def __init__(self, *, alpha: float = 1e-6) -> None:
        self._limit = 1.0 / alpha
        self._wealth = np.zeros(_FACTORS.size)
        self._reserve = 1.0
        self._drafted = 0
        self._excess = 0.0
        self._variance = 0.0
        self._tripped = False

    def observe(self, draft: SampledDraft) -> None:
        """Note a draft: every one that was drawn, with all its tokens, accepted or not.

        To leave out drafts depending on what they drew would make an honest drafter look wrong.
        Rows that hold a single token tell nothing and are skipped. A token outside its own row is
        proof.
        """
        for token, row in zip(draft.token_ids, draft.rows, strict=True):
            place = int(np.searchsorted(row.token_ids, token))
            if place == row.token_ids.size or row.token_ids[place] != token:
                self._tripped = True
            elif row.counts.size > 1:
                likeliest = int(np.argmax(row.counts))
                self._count(place == likeliest, int(row.counts[likeliest]) / DRAFT_TOTAL)
        self._tripped = self._tripped or self.evidence >= self._limit

    @property
    def drafted(self) -> int:
        """Rows counted."""
        return self._drafted

    @property
    def z(self) -> float:
        """Draws of the likeliest token beyond those declared, in standard deviations.

        Near standard normal for an honest drafter, at any one time. Above 0 the tokens are
        likelier than declared.
        """
        return self._excess / math.sqrt(self._variance) if self._variance > 0 else 0.0

    @property
    def evidence(self) -> float:
        """The bet's worth, from a stake of 1; it no longer changes once `tripped`."""
        return float(self._wealth.mean()) + self._reserve

    @property
    def tripped(self) -> bool:
        """Whether the drafter stands accused; this is not taken back."""
        return self._tripped

    def _count(self, drawn: bool, prob: float) -> None:
        self._drafted += 1
        self._excess += drawn - prob
        self._variance += prob * (1.0 - prob)
        if not self._tripped:  # afterwards the worth would only grow beyond all numbers
            reserve = 1.0 / (self._drafted + 1)
            likelihood = (_FACTORS if drawn else 1.0) / (1.0 - prob + prob * _FACTORS)
            self._wealth = (self._wealth + (self._reserve - reserve)) * likelihood
            self._reserve = reserve
