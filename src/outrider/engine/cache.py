"""Keys and values of the tokens that each sequence has been through, one slot a sequence.

A slot's storage grows with its sequence and is given back when it is freed, so that the number of
slots and their longest length may be set generously.
"""

from __future__ import annotations

import itertools
from typing import Final

import torch
from torch import Tensor

from outrider.engine.architecture import ModelConfig
from outrider.errors import ConfigError, ContextLengthExceeded, Overloaded

__all__ = ["KVCache"]

_GRANULE: Final = 64  # tokens; the smallest storage, and what larger ones are rounded up to


class _Slot:
    """`storage`: [layers, 2, kv_heads, capacity, head_dim], of which `length` tokens are filled."""

    __slots__ = ("length", "storage")

    def __init__(self, storage: Tensor) -> None:
        self.storage = storage
        self.length = 0


class KVCache:
    """Slots of keys and values. Not safe for use by several threads at once.

    A slot is named by a number that is never given out twice, so that a caller who kept one too
    long meets an error and not another sequence.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_slots: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Args:
            num_slots: the most sequences held at once.
            max_length: the most tokens in one of them.

        Raises:
            ConfigError: no slots, or a length that the model's context does not allow.
        """
        if num_slots < 1:
            raise ConfigError(f"a cache of {num_slots} slots holds nothing; use at least 1")
        if not 1 <= max_length <= config.context_length:
            raise ConfigError(
                f"sequences of {max_length} tokens do not fit the model;"
                f" use 1 to its context length of {config.context_length}"
            )
        self.max_length = max_length
        self._num_slots = num_slots
        self._dtype = dtype
        self._device = device
        self._layers = config.num_layers
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._slots: dict[int, _Slot] = {}
        self._numbers = itertools.count()

    @property
    def num_free(self) -> int:
        """Slots that can still be allocated."""
        return self._num_slots - len(self._slots)

    @property
    def num_layers(self) -> int:
        """Layers that the cache holds keys and values of."""
        return self._layers

    @property
    def bytes_in_use(self) -> int:
        """Memory that the slots hold now, filled or not."""
        return sum(slot.storage.nbytes for slot in self._slots.values())

    def allocate(self) -> int:
        """Take an empty slot.

        Raises:
            Overloaded: all are taken.
        """
        if self.num_free == 0:
            raise Overloaded(
                f"all {self._num_slots} cache slots are taken; try again when a request has ended"
            )
        number = next(self._numbers)
        self._slots[number] = _Slot(self._storage(0))
        return number

    def free(self, slot: int) -> None:
        """Give a slot and its memory back.

        Raises:
            RuntimeError: it is not allocated, or no longer.
        """
        self._slot(slot)
        del self._slots[slot]

    def length(self, slot: int) -> int:
        """Tokens that the slot holds.

        Raises:
            RuntimeError: it is not allocated, or no longer.
        """
        return self._slot(slot).length

    def truncate(self, slot: int, length: int) -> None:
        """Forget all tokens from position `length` on. Costs nothing and frees no memory.

        Raises:
            RuntimeError: the slot is not allocated, or no longer.
            ValueError: the slot holds fewer tokens.
        """
        held = self._slot(slot)
        if not 0 <= length <= held.length:
            raise ValueError(
                f"slot {slot} holds {held.length} tokens and cannot be cut to {length}"
            )
        held.length = length

    def reserve(self, slot: int, length: int) -> Tensor:
        """Make room for `length` tokens in all, leaving the slot's length as it is.

        Returns the slot's storage, [layers, 2 (keys, values), kv_heads, capacity, head_dim], good
        until the next call for the same slot: write to positions from its length on. Storage at
        least doubles when it grows, so that appending costs O(1) per token on average.

        Raises:
            RuntimeError: the slot is not allocated, or no longer.
            ContextLengthExceeded: `length` is over the longest allowed.
        """
        held = self._slot(slot)
        self.check_fits(length)
        capacity = held.storage.shape[3]
        if length > capacity:
            rounded = -(-length // _GRANULE) * _GRANULE
            grown = self._storage(min(max(rounded, 2 * capacity), self.max_length))
            grown[:, :, :, : held.length] = held.storage[:, :, :, : held.length]
            held.storage = grown
        return held.storage

    def check_fits(self, length: int) -> None:
        """Raises ContextLengthExceeded if a slot cannot hold `length` tokens."""
        if length > self.max_length:
            raise ContextLengthExceeded(
                f"a sequence of {length} tokens is longer than the {self.max_length} allowed;"
                " shorten the prompt or ask for fewer tokens"
            )

    def commit(self, slot: int, length: int) -> None:
        """Declare that the slot's storage is filled up to `length`.

        Raises:
            RuntimeError: the slot is not allocated, or no room was reserved for that many tokens.
        """
        held = self._slot(slot)
        if length > held.storage.shape[3]:
            raise RuntimeError(f"slot {slot} has no room for {length} tokens; reserve it first")
        held.length = length

    def _slot(self, slot: int) -> _Slot:
        try:
            return self._slots[slot]
        except KeyError:
            raise RuntimeError(
                f"cache slot {slot} is not allocated: it was freed, or never taken"
            ) from None

    def _storage(self, capacity: int) -> Tensor:
        return torch.empty(
            (self._layers, 2, self._kv_heads, capacity, self._head_dim),
            dtype=self._dtype,
            device=self._device,
        )
