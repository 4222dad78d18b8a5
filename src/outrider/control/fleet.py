"""What the sessions of one drafter share: costs, acceptance, and an allowance for trying."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from outrider.control.acceptance import FleetAcceptance
from outrider.control.cost import CostModel

__all__ = ["Fleet"]

_SHARE = 0.006
_CREDIT = 8.0
_CAP = 64.0
_REPRICED = 16
_INITIAL = 4


class _Member(Protocol):
    @property
    def rate(self) -> float: ...

    def __hash__(self) -> int: ...


class Fleet:
    """Shared by all sessions of one pair of target and drafter; one event loop uses it.

    Nothing has to be returned: a session that is no longer referenced has left.

    What is spent on finding out, rather than on the best that is known, comes from one allowance:
    a hundredth of the time that sessions spend decoding, and eight steps of credit.

    Args:
        max_lookahead: the longest draft that any session asks for.
    """

    def __init__(self, max_lookahead: int = 16) -> None:
        self.cost = CostModel()
        self.acceptance = FleetAcceptance(max_lookahead)
        self.hits = [1.0, 1.0]
        self._members: WeakSet[_Member] = WeakSet()
        self._balance = 0.0
        self._price = 0.0
        self._asked = 0

    @property
    def sessions(self) -> int:
        """Sessions that are there now."""
        return len(self._members)

    @property
    def knows_nothing(self) -> bool:
        """Whether what a draft is good for, or what it takes, was never measured."""
        judged = self.acceptance.judged
        return not judged or (self.cost.awaits_draft and judged < _INITIAL)

    @property
    def allowance_s(self) -> float:
        """Seconds that may be spent now on finding out."""
        return self._balance + _CREDIT * self.cost.plain_s

    def join(self, member: _Member) -> None:
        """Count a session in until it is gone."""
        self._members.add(member)

    def price(self) -> float:
        """Tokens that others do not get for every second by which a step takes longer.

        With the tokens of all sessions sorted by the probability that they survive, admitting them
        until the sum of goodputs falls is admitting those above one bound: what a token costs all
        sessions of the step. So each session can choose for itself, once the bound is known; it is
        computed anew every few choices.
        """
        if self._asked % _REPRICED == 0:
            rates = [member.rate for member in self._members if member.rate > 0]
            mean = sum(rates) / len(rates) if rates else 1 / self.cost.plain_s
            self._price = mean * self.cost.sharers
        self._asked += 1
        return self._price

    def earn(self, decoding_s: float) -> None:
        """A session decoded for so long."""
        cap = _CAP * self.cost.plain_s
        self._balance = min(self._balance + _SHARE * decoding_s, cap)

    def spend(self, seconds: float) -> None:
        """So much time was lost by finding out."""
        self._balance -= seconds

    def affords_in(self, cost_s: float) -> int:
        """Tokens of plain decoding that earn what `cost_s` lacks; 0 if the allowance covers it."""
        missing = cost_s - max(self.allowance_s, 0.0)
        return max(round(missing / (_SHARE * self.cost.plain_s)), 0)

    def add_hit(self, predicted: float, *, hit: bool) -> None:
        """A draft made ahead served or not, where that was predicted with so much confidence."""
        keep = 0.98
        self.hits = [keep * self.hits[0] + hit, keep * self.hits[1] + predicted]
