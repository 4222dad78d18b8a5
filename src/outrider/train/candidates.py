"""What a draft under test is, and what it says of the answers that it is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from outrider.train.acceptance import SparseRow
from outrider.train.records import Example
from outrider.types import SamplingParams, VerificationMethod

__all__ = ["Candidate", "Prospect", "Rule", "TargetRows", "answers", "judged_places", "room"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


TargetRows = Mapping[int, SparseRow]
"""The rows that tokens were drawn from, by the token's place in the conversation."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How drafts are judged.

    Attributes:
        method: greedy, matching, token or block.
        params: how the target samples.
        lookahead: the longest draft that is looked at.
    """

    method: VerificationMethod
    params: SamplingParams
    lookahead: int


@dataclass(frozen=True, slots=True, eq=False)
class Prospect:
    """How drafts would fare at every place of one answer, from its second token on.

    The first token comes with the prompt, and no draft is asked for it.

    Attributes:
        held: float64 [n, K + 1], how likely the first j tokens of a draft hold.
        drafted: int64 [n], tokens that can be drafted, at most K.
    """

    held: F64
    drafted: I64


class Candidate(Protocol):
    """A draft under test.

    Attributes:
        name: as the user wrote it.
        declares: whether it can be judged by ratios.
    """

    @property
    def name(self) -> str: ...

    @property
    def declares(self) -> bool: ...

    async def judge(self, example: Example, rows: TargetRows, rule: Rule) -> list[Prospect]:
        """How it would fare on each answer of a conversation. Raises TargetFailed.

        Args:
            example: the conversation.
            rows: the target's; needed at a temperature above 0 alone.
            rule: how drafts are judged.
        """
        ...


def judged_places(example: Example) -> list[int]:
    """The places of all tokens that a draft may be asked for: no answer's first."""
    return [place for part in answers(example) for place in range(part.start + 1, part.stop)]


def answers(example: Example) -> list[slice]:
    """Where the answers of a conversation are, in order."""
    made = np.flatnonzero(example.generated)
    if not made.size:
        return []
    breaks = np.flatnonzero(np.diff(made) != 1) + 1
    return [slice(int(part[0]), int(part[-1]) + 1) for part in np.split(made, breaks)]


def room(example: Example, lookahead: int) -> I64:
    """How long a draft in front of each token may be, int64 [len(tokens)].

    An answer that was cut off is known to end there, and nothing is drafted for its last token.
    """
    left = np.full(len(example.token_ids), lookahead, dtype=np.int64)
    for part, reason in zip(answers(example), example.finish_reasons, strict=False):
        if reason == "length":
            left[part] = np.minimum(np.arange(part.stop - part.start)[::-1], lookahead)
    return left
