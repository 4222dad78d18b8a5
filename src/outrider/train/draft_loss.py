"""A draft and its loss as one module, so that whatever wraps a module wraps both."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from outrider.train.batches import Batch, batch_rows
from outrider.train.live_teacher import LiveTeacher
from outrider.train.losses import LossSums, dense_loss, distillation_loss
from outrider.train.objective import LossSettings

__all__ = ["COUNTS", "DraftLoss"]

COUNTS: Final = (
    "loss",
    "acceptance",
    "acceptance_most",
    "agreements",
    "cross_entropy",
    "labelled",
    "tokens",
)
"""What `DraftLoss` counts, in order; names as in `LossSums`."""


class DraftLoss(nn.Module):
    """Runs a draft over a batch and compares its predictions with the target's.

    The head runs at predicting positions alone, some at a time: the logits of a whole batch never
    exist.

    Attributes:
        draft: a causal language model of transformers.
    """

    def __init__(
        self,
        draft: Any,
        settings: LossSettings,
        *,
        target_ids: Tensor | None = None,
        vocab_size: int | None = None,
        teacher: LiveTeacher | None = None,
    ) -> None:
        """Args:
        draft: with `base_model` and `get_output_embeddings`.
        target_ids: int64 [V_draft] of a draft with ids of its own, -1 for ids that have no
            meaning in the target.
        vocab_size: the length of the target's rows, for a draft that has the target's ids and
            perhaps rows beyond them.
        teacher: in place of stored rows.
        """
        super().__init__()
        self.draft = draft
        self._settings = settings
        # In a tuple, so that it is no part of this module: it is not trained, and not saved.
        self._teacher = (teacher,)
        size = draft.get_output_embeddings().weight.shape[0]
        if target_ids is None:
            own = torch.arange(size)
            target_ids = torch.where(own < (vocab_size or size), own, -1)
        known = target_ids >= 0
        self.register_buffer("_never", None if bool(known.all()) else ~known, persistent=False)
        self.register_buffer("_target_ids", target_ids, persistent=False)

    def hidden(self, batch: Batch) -> Tensor:
        """[N, H], the states that predict the batch's N tokens."""
        states = self.draft.base_model(input_ids=batch["input_ids"], use_cache=False)
        last: Tensor = states.last_hidden_state
        return last.flatten(0, 1)[batch["places"]]

    @property
    def head(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The output head's weight and bias, and which ids are never drafted."""
        head = self.draft.get_output_embeddings()
        return head.weight, head.bias, self._never  # type: ignore[return-value]  # a buffer

    def forward(self, batch: Batch, num_items: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, summed over the batch's tokens and divided by `num_items`, and `COUNTS`."""
        hidden = self.hidden(batch)
        weight, bias, never = self.head
        (teacher,) = self._teacher
        if teacher is None:
            sums = distillation_loss(
                hidden,
                weight,
                batch_rows(batch),
                batch["labels"],
                self._settings,
                num_items,
                bias=bias,
                never_drafted=never,
            )
        else:
            sums = dense_loss(
                hidden,
                weight,
                teacher.rows(batch),
                batch["labels"],
                self._settings,
                num_items,
                target_ids=self._target_ids,  # type: ignore[arg-type]  # a buffer
                bias=bias,
            )
        return sums.loss, _counts(sums)


def _counts(sums: LossSums) -> Tensor:
    values = [getattr(sums, name) for name in COUNTS]
    # float64, so that sums over a long run stay exact to the token.
    return torch.stack([torch.as_tensor(each).detach().double().cpu() for each in values])
