"""What every decoder is, whatever its weights are held in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import torch
from torch import Tensor

from outrider.engine.architecture import ModelConfig
from outrider.engine.batch import Chunk
from outrider.engine.cache import KVCache

__all__ = ["Decoder"]


class Decoder(Protocol):
    """A transformer decoder on one device. Holds no state of any sequence: that is in the cache."""

    @property
    def config(self) -> ModelConfig:
        """Its architecture."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        ...

    @property
    def batch_invariant(self) -> bool:
        """Whether a row's logits are the same to the last bit whatever is computed beside it."""
        ...

    def truncated(self, num_layers: int) -> Self:
        """The first `num_layers` layers as a model of their own, sharing all weights with this one.

        Raises:
            ValueError: not between 1 and the layers there are.
        """
        ...

    def new_cache(self, *, num_slots: int, max_length: int) -> KVCache:
        """An empty cache that fits this model. Raises ConfigError as `KVCache` does."""
        ...

    def forward(self, chunks: Sequence[Chunk], cache: KVCache) -> list[Tensor]:
        """Append each chunk's tokens to its slot.

        Returns, for each chunk, the logits that follow its last `num_logits` tokens:
        [num_logits, V], float32, on the model's device. The cost is that of the new tokens and
        their attention.

        If it raises, all slots hold what they held before.

        Raises:
            ValueError, RequestError, ContextLengthExceeded, RuntimeError: see `batch.pack`.
        """
        ...
