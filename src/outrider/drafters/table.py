"""The drafter over a table of logits."""

from __future__ import annotations

from outrider.drafters.base import SessionView
from outrider.models.table import TableModel
from outrider.sampling import TokenSampler
from outrider.types import Draft, DrafterInfo

__all__ = ["TableDrafter"]


class TableDrafter:
    """Samples drafts from a `TableModel` with the session's noise, to couple with the target."""

    def __init__(self, model: TableModel, *, name: str = "table") -> None:
        self._model = model
        self._name = name

    async def describe(self) -> DrafterInfo:
        return DrafterInfo(
            name=self._name,
            deterministic=False,
            context_length=self._model.context_length,
            model_hash=self._model.model_hash,
            vocab_fingerprint=self._model.vocab_fingerprint,
        )

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        sampler = TokenSampler(view.sampling, view.noise_key, view.choice)
        start = max(view.length - self._model.order, 0)
        context = list(view.tokens[start : view.length])
        drafted: list[int] = []
        for position in range(view.length, view.length + max_tokens):
            token = sampler.sample(self._model.logits(context, len(context)), position)
            context.append(token)
            drafted.append(token)
        return Draft(tuple(drafted), self._name)

    async def release(self, session_id: str) -> None:
        """Nothing is held between rounds."""

    async def close(self) -> None:
        """Nothing is held."""
