"""The drafter over a table of logits."""

from __future__ import annotations

import numpy as np

from outrider.drafters.base import SessionView
from outrider.drafters.picker import Picker, Sampling
from outrider.errors import DraftFailed, OutriderError
from outrider.models.table import TableModel
from outrider.sampling import History
from outrider.types import Draft, DrafterInfo, SampledDraft

__all__ = ["TableDrafter"]


class TableDrafter:
    """Samples drafts from a `TableModel`.

    Args:
        model: what it samples from.
        name: how requests name it.
        min_confidence: where a draft ends; see `ConfidenceStop`.
    """

    def __init__(
        self, model: TableModel, *, name: str = "table", min_confidence: float = 0.0
    ) -> None:
        self._model = model
        self._min_confidence = min_confidence
        self._name = name
        self._rng = np.random.default_rng()

    async def describe(self) -> DrafterInfo:
        return DrafterInfo(
            name=self._name,
            deterministic=False,
            declares=True,
            ahead=True,
            context_length=self._model.context_length,
            model_hash=self._model.model_hash,
            vocab_fingerprint=self._model.vocab_fingerprint,
        )

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        draft = self._pick(view, max_tokens, None)
        return Draft(draft.token_ids, self._name)

    async def prepare(self, view: SessionView) -> None:
        """There is nothing to read."""

    async def draw(self, view: SessionView, max_tokens: int) -> Draft | SampledDraft:
        return self._pick(view, max_tokens, self._rng)

    async def release(self, session_id: str) -> None:
        """Nothing is held between rounds."""

    async def close(self) -> None:
        """Nothing is held."""

    def _pick(
        self, view: SessionView, max_tokens: int, rng: np.random.Generator | None
    ) -> Draft | SampledDraft:
        sampling = Sampling(view, self._model.eos_token_ids, min_confidence=self._min_confidence)
        picker = Picker(sampling, rng)
        start = view.prompt_length
        history = History(view.tokens[:start], (*view.tokens[start : view.length], *view.guess))
        try:
            while not picker.done(max_tokens):
                picker.pick(self._model.logits(history.tokens, len(history)), history)
        except OutriderError as error:
            if not len(picker):  # else what is drawn so far is the draft, and must not be dropped
                raise DraftFailed(str(error)) from None
        return picker.draft(self._name)
