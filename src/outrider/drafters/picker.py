"""How a draft model's rows become a draft: coupled with the target, or drawn and declared."""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider.drafters.base import SessionView
from outrider.sampling import History, Sampler, SamplerFactory, TokenSampler
from outrider.types import DRAFT_TOTAL, NO_DRAFT, Draft, DraftRow, SampledDraft
from outrider.verify import declare, draw

__all__ = ["DRAFT_SUPPORT", "Picker", "Sampling"]

DRAFT_SUPPORT = 256
"""Tokens that a declared distribution keeps."""


class Sampling:
    """How the drafts of one session are sampled: made once, since some parameters take long.

    Rows are processed as the target does, penalties and all, since drafts that look like the
    target's output are accepted more often.

    Args:
        view: of the session.
        eos_token_ids: of the target.
        sampler: makes the sampler for the kind of rows that the draft model has.

    Attributes:
        sampler: with the session's own noise.
        end_token_ids: ids behind which there is nothing to draft.
    """

    def __init__(
        self,
        view: SessionView,
        eos_token_ids: frozenset[int],
        sampler: SamplerFactory = TokenSampler,
    ) -> None:
        self.end_token_ids = view.sampling.end_token_ids(eos_token_ids)
        self.sampler: Sampler = sampler(
            view.sampling, view.noise_key, view.choice, end_token_ids=self.end_token_ids
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
        self._rng = rng
        self._token_ids: list[int] = []
        self._rows: list[DraftRow] = []

    def __len__(self) -> int:
        return len(self._token_ids)

    def pick(self, logits: Any, history: History) -> None:
        """Add a token to the draft, and to the history.

        Args:
            logits: shape [V], of the target's vocabulary, of the kind that the sampler reads.
            history: all tokens in front of it, those drafted so far included.
        """
        if self._rng is None:
            token_id = self._sampler.sample(logits, history)
        else:
            head = self._sampler.head(logits, history, DRAFT_SUPPORT)
            row = declare(head.ids, head.probs(), DRAFT_SUPPORT)
            token_id = draw(row, int(self._rng.integers(DRAFT_TOTAL)))
            self._rows.append(row)
        self._token_ids.append(token_id)
        history.extend((token_id,))

    def done(self, max_tokens: int) -> bool:
        """Whether the draft is long enough, or behind a token that ends the output."""
        drafted = self._token_ids
        return len(drafted) >= max_tokens or (bool(drafted) and drafted[-1] in self._ends)

    def draft(self, source: str) -> Draft | SampledDraft:
        """What was picked so far."""
        if not self._token_ids:
            return NO_DRAFT
        if self._rng is None:
            return Draft(tuple(self._token_ids), source)
        return SampledDraft(tuple(self._token_ids), tuple(self._rows), source)
