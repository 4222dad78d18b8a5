"""Where a draft model stops since it is unsure."""

from __future__ import annotations

__all__ = ["ConfidenceStop"]


class ConfidenceStop:
    """Ends a draft behind the token that makes it unlikely that the whole draft holds.

    How likely is the product, over the rows so far, of the probability of each row's likeliest
    token. So whether a further token is drafted depends on the tokens before the last one and on
    the row of the last one, never on the last token itself, which is kept: that is what makes it
    exact under ratio verification, and dropping a token for what it is would not be.

    Args:
        least: the product below which the draft ends.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._product = 1.0

    def see(self, likeliest: float) -> None:
        """Take in the row that the next token comes from: its largest probability."""
        self._product *= likeliest

    @property
    def reached(self) -> bool:
        """Whether the draft ends behind the token of the row that was seen last."""
        return self._product < self._least
