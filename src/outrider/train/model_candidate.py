"""A draft model under test: it reads the answers as it would be served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from outrider.drafters.picker import DRAFT_SUPPORT, DraftSampler, DraftSamplerFactory
from outrider.drafters.translation import Translation
from outrider.engine import Lane
from outrider.sampling import History
from outrider.train.acceptance import SparseRow, block_survival, coupled, ratio, survival
from outrider.train.candidates import (
    Prospect,
    Rule,
    TargetRows,
    answers,
    judged_places,
    room,
)
from outrider.train.reading import read
from outrider.train.records import Example
from outrider.types import SamplingParams, TargetInfo, VerificationMethod
from outrider.verify import declare

__all__ = ["ModelCandidate"]

I64 = npt.NDArray[np.int64]

_NO_HISTORY: Final = History((0,))
"""Answers are drawn without penalties, so rows are processed alike behind any tokens."""


class ModelCandidate:
    """A draft model, read by teacher forcing on a lane of its own.

    Args:
        name: as the user wrote it.
        lane: the model, in the number format that serves it.
        info: of the target.
        sampler: makes what processes its rows as serving does.
        row_size: entries of its rows that count.
        translation: to the model's ids; None if they are the target's.
    """

    declares = True

    def __init__(
        self,
        name: str,
        lane: Lane,
        info: TargetInfo,
        sampler: DraftSamplerFactory,
        row_size: int,
        translation: Translation | None,
    ) -> None:
        self.name = name
        self.lane = lane
        self._info = info
        self._factory = sampler
        self._row_size = row_size
        self._translation = translation

    def sampler(self, params: SamplingParams) -> DraftSampler:
        return self._factory(params, 0, end_token_ids=self._info.eos_token_ids)

    def row(self, logits: torch.Tensor) -> torch.Tensor:
        """What counts of one row."""
        return logits[: self._row_size]

    def context(self, token_ids: Sequence[int], prompt_length: int) -> tuple[list[int], I64]:
        """A text in the model's ids, and how many stand in front of each token; int64 [n].

        Args:
            token_ids: n of the target's.
            prompt_length: how many of them stood there when the model first saw the text.
        """
        if self._translation is None:
            return list(token_ids), np.arange(len(token_ids))
        ids = self._translation.context(token_ids[:prompt_length])
        pieces, ends = self._translation.align(token_ids[prompt_length:])
        behind = np.asarray([len(ids), *(len(ids) + end for end in ends)], dtype=np.int64)
        return [*ids, *pieces], np.concatenate([np.zeros(prompt_length, np.int64), behind[:-1]])

    async def judge(self, example: Example, rows: TargetRows, rule: Rule) -> list[Prospect]:
        parts = answers(example)
        if not parts:
            return []
        ids, ends = self.context(example.token_ids.tolist(), parts[0].start)
        longest = self.lane.cache.max_length
        known = min(self.lane.decoder.config.context_length, self._info.context_length)
        fits = np.minimum(known - np.arange(len(ends)), longest - ends)
        drafted = np.clip(fits, 0, room(example, rule.lookahead))

        # Behind one place of the text there may be several tokens, if the draft cannot say some.
        asked: dict[int, list[int]] = {}
        for token in judged_places(example):
            if 0 < ends[token] < longest:
                asked.setdefault(int(ends[token]) - 1, []).append(token)
        sampler = self.sampler(rule.params)
        accepted = np.zeros(len(ends))

        def look(place: int, logits: torch.Tensor) -> None:
            for token in asked[place]:
                said = int(example.token_ids[token])
                row = self.row(logits)
                accepted[token] = _acceptance(sampler, row, rows.get(token), said, rule.method)

        await read(self.lane, ids, list(asked), look)
        reach = block_survival if rule.method is VerificationMethod.BLOCK else survival
        later = [slice(part.start + 1, part.stop) for part in parts]
        return [
            Prospect(reach(accepted[part], rule.lookahead), drafted[part])
            for part in later
            if part.start < part.stop
        ]


def _acceptance(
    sampler: DraftSampler,
    row: torch.Tensor,
    target: SparseRow | None,
    said: int,
    method: VerificationMethod,
) -> float:
    """Of the token `said`, by the draft's row in front of it; a ratio under the ratio rules."""
    if target is None:
        return float(sampler.sample(row, _NO_HISTORY) == said)
    if method is VerificationMethod.MATCHING:
        draft = sampler.head(row, _NO_HISTORY, row.numel())
        probs = draft.probs_at(np.append(target.token_ids, said).astype(np.int64))
        return coupled(target, probs[:-1], float(probs[-1]))
    head = sampler.head(row, _NO_HISTORY, DRAFT_SUPPORT)
    declared = declare(head.ids, head.probs(), DRAFT_SUPPORT)
    return ratio(target, float(declared.probs()[declared.token_ids == said].sum()))
