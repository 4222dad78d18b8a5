"""The target itself beside the draft, in place of stored rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.errors import TrainingError, UnsupportedModel
from outrider.train.batches import Batch

__all__ = ["LiveTeacher"]


class LiveTeacher:
    """A frozen model that says what the target would.

    It gives whole rows, where stored ones keep the likeliest tokens and the mass of all others. But
    it runs in floating point: a target that is served in int8 or int4 says something slightly else.
    """

    def __init__(self, model: Any) -> None:
        """Takes a causal language model of transformers, in the target's ids."""
        self._model = model.eval().requires_grad_(False)

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype) -> LiveTeacher:
        """The model in `folder`, which holds it in floating point.

        Raises:
            UnsupportedModel: transformers cannot load it.
        """
        from transformers import AutoModelForCausalLM  # noqa: PLC0415 # seconds, and rarely wanted

        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError) as error:
            words = " ".join(str(error).split())
            raise UnsupportedModel(
                f"{folder} cannot be run as a live teacher: {words}; train on stored rows"
            ) from error
        model.to(device)  # type: ignore[arg-type]  # its stubs lose the signature
        return cls(model)

    @torch.no_grad()
    def rows(self, batch: Batch) -> Callable[[slice], Tensor]:
        """Gives raw logits [rows, V_target] for a slice of the batch's N predicted tokens.

        Raises:
            TrainingError: the batch has no tokens of the target's.
        """
        if "target_tokens" not in batch:
            raise TrainingError("a live teacher needs batches with the target's own tokens")
        states = self._model.base_model(input_ids=batch["target_tokens"], use_cache=False)
        hidden = states.last_hidden_state.flatten(0, 1)[batch["target_places"]]
        head = self._model.get_output_embeddings()

        def logits(rows: slice) -> Tensor:
            with torch.no_grad():
                found: Tensor = head(hidden[rows])
            return found

        return logits
