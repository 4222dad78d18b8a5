"""A drafter under test that needs no model: it drafts anew in front of every token."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from outrider.drafters import NgramDrafter, SessionView, SuffixDrafter
from outrider.train.candidates import Prospect, Rule, TargetRows, answers, room
from outrider.train.records import Example
from outrider.types import SamplingParams

__all__ = ["ReplayCandidate"]


class ReplayCandidate:
    """A drafter that needs no model, asked anew in front of every token.

    What it drafts is matched, and known for certain. One that learns from other answers sees them
    in the order in which they are judged.

    Args:
        name: as the user wrote it.
        drafter: of a kind that answers at once.

    Attributes:
        seconds: that each draft took, so far.
    """

    declares = False

    def __init__(self, name: str, drafter: NgramDrafter | SuffixDrafter) -> None:
        self.name = name
        self._drafter = drafter
        self.seconds: list[float] = []

    async def judge(self, example: Example, rows: TargetRows, rule: Rule) -> list[Prospect]:
        left = room(example, rule.lookahead)
        found = []
        for number, part in enumerate(answers(example)):
            tokens = example.token_ids[: part.stop].tolist()
            budget = rule.params.max_tokens
            params = SamplingParams(temperature=rule.params.temperature, max_tokens=budget)
            size = part.stop - part.start - 1
            held = np.zeros((size, rule.lookahead + 1))
            drafted = np.zeros(size, dtype=np.int64)
            for index in range(size):
                place = part.start + 1 + index
                view = SessionView(
                    f"{example.id} {number}", tokens, place, part.start, params, noise_key=0
                )
                began = time.perf_counter()
                draft = (await self._drafter.propose(view, rule.lookahead)).token_ids
                self.seconds.append(time.perf_counter() - began)
                drafted[index] = min(len(draft), left[place])
                held[index, : _agreeing(draft, tokens[place:]) + 1] = 1.0
            await self._drafter.release(f"{example.id} {number}")
            if size:
                found.append(Prospect(held, drafted))
        return found


def _agreeing(draft: Sequence[int], said: Sequence[int]) -> int:
    count = 0
    for guess, token in zip(draft, said, strict=False):
        if guess != token:
            break
        count += 1
    return count
