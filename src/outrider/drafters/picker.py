"""How a draft model's rows become a draft: coupled with the target, or drawn and declared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from outrider.drafters.base import SessionView
from outrider.drafters.confidence import ConfidenceStop
from outrider.sampling import History, Support, TokenSampler
from outrider.types import (
    DRAFT_TOTAL,
    NO_DRAFT,
    Draft,
    DraftRow,
    SampledDraft,
    SamplingParams,
)
from outrider.verify import declare, draw

__all__ = ["DRAFT_SUPPORT", "DraftSampler", "DraftSamplerFactory", "Picker", "Sampling"]

DRAFT_SUPPORT = 256
"""Tokens that a declared distribution keeps."""


class DraftSampler(Protocol):
    """The part of `sampling.Sampler` that drafting takes, for rows of whatever kind."""

    def head(self, logits: Any, history: History, size: int) -> Support: ...

    def sample(self, logits: Any, history: History) -> int: ...


class DraftSamplerFactory(Protocol):
    """Makes the sampler of one choice of one request, as `sampling.SamplerFactory`."""

    def __call__(
        self,
        params: SamplingParams,
        noise_key: int,
        choice: int = 0,
        *,
        end_token_ids: frozenset[int] = frozenset(),
    ) -> DraftSampler: ...


class Sampling:
    """How the drafts of one session are sampled: made once, since some parameters take long.

    Rows are processed as the target does, penalties and all, since drafts that look like the
    target's output are accepted more often.

    Args:
        view: of the session.
        eos_token_ids: of the target.
        sampler: makes the sampler for the kind of rows that the draft model has.
        min_confidence: see `ConfidenceStop`; 0 never stops a draft.

    Attributes:
        sampler: with the session's own noise.
        confidence: tells how sure the model is; at temperature 0 by its rows at temperature 1.
        end_token_ids: ids behind which there is nothing to draft.
    """

    def __init__(
        self,
        view: SessionView,
        eos_token_ids: frozenset[int],
        sampler: DraftSamplerFactory = TokenSampler,
        min_confidence: float = 0.0,
    ) -> None:
        self.end_token_ids = view.sampling.end_token_ids(eos_token_ids)
        self.sampler: DraftSampler = sampler(
            view.sampling, view.noise_key, view.choice, end_token_ids=self.end_token_ids
        )
        self.min_confidence = min_confidence
        self.confidence = self.sampler
        if min_confidence and view.sampling.greedy:
            warm = replace(view.sampling, temperature=1.0)
            self.confidence = sampler(
                warm, view.noise_key, view.choice, end_token_ids=self.end_token_ids
            )


class Picker:
    """Picks the tokens of one draft.

    Args:
        sampling: of the session.
        rng: with one, tokens are drawn from it and their distributions declared; without, they are
            sampled with the session's own noise, greedily at temperature 0.
    """

    def __init__(self, sampling: Sampling, rng: np.random.Generator | None = None) -> None:
        self._ends = sampling.end_token_ids
        self._sampler = sampling.sampler
        self._confidence = sampling.confidence
        self._stop = ConfidenceStop(sampling.min_confidence) if sampling.min_confidence else None
        self._rng = rng
        self._token_ids: list[int] = []
        self._rows: list[DraftRow] = []

    def __len__(self) -> int:
        return len(self._token_ids)

    def pick(self, logits: Any, history: History) -> None:
        """Add a token to the draft, and to the history.

        Args:
            logits: shape [V], of the kind that the sampler reads.
            history: all tokens in front of it, those drafted so far included.

        Raises:
            RequestError: the constraints leave no token; nothing is added.
        """
        if self._rng is None:
            token_id = self._sampler.sample(logits, history)
            if self._stop is not None:
                sure = self._confidence.head(logits, history, DRAFT_SUPPORT)
                self._stop.see(float(sure.probs().max()))
        else:
            head = self._sampler.head(logits, history, DRAFT_SUPPORT)
            row = declare(head.ids, head.probs(), DRAFT_SUPPORT)
            if self._stop is not None:
                self._stop.see(float(row.probs().max()))
            token_id = draw(row, int(self._rng.integers(DRAFT_TOTAL)))
            self._rows.append(row)
        self._token_ids.append(token_id)
        history.extend((token_id,))

    def done(self, max_tokens: int) -> bool:
        """Whether the draft is long or unsure enough, or behind a token that ends the output."""
        drafted = self._token_ids
        if len(drafted) >= max_tokens or (self._stop is not None and self._stop.reached):
            return True
        return bool(drafted) and drafted[-1] in self._ends

    def draft(self, source: str) -> Draft | SampledDraft:
        """What was picked so far."""
        if not self._token_ids:
            return NO_DRAFT
        if self._rng is None:
            return Draft(tuple(self._token_ids), source)
        return SampledDraft(tuple(self._token_ids), tuple(self._rows), source)
