"""Storage for keys and values, one slot a sequence.

Memory is counted in tokens, which all cost the same bytes. What a sequence may come to is promised
to it when it begins, within a fixed budget; its storage grows up to that as it does.
"""

from __future__ import annotations

import itertools
from typing import Final

import torch
from torch import Tensor

from outrider.engine.architecture import ModelConfig
from outrider.errors import ConfigError, ContextLengthExceeded, Overloaded

__all__ = ["Slot", "Slots", "rounded"]

_GRANULE: Final = 64  # tokens; the smallest storage, and what larger ones are rounded up to


class Slot:
    """One sequence.

    Attributes:
        storage: [layers, 2, kv_heads, capacity, head_dim].
        length: tokens that it is filled with.
        limit: tokens that it may come to.
        tenant: whose it is, if others of theirs may share it.
    """

    __slots__ = ("length", "limit", "storage", "tenant")

    def __init__(self, storage: Tensor, limit: int) -> None:
        self.storage = storage
        self.length = 0
        self.limit = limit
        self.tenant: str | None = None

    @property
    def capacity(self) -> int:
        return self.storage.shape[3]


class Slots:
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
            num_slots: the most sequences running at once.
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
        self._budget = num_slots * max_length
        self._dtype = dtype
        self._device = device
        self._layers = config.num_layers
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._slots: dict[int, Slot] = {}
        self._numbers = itertools.count()
        # In tokens: promised to the sequences, and held by them.
        self._promised = self._used = 0

    @property
    def num_free(self) -> int:
        """Slots that can still be allocated."""
        return self._num_slots - len(self._slots)

    @property
    def num_layers(self) -> int:
        """Layers that the cache holds keys and values of."""
        return self._layers

    @property
    def bytes_per_token(self) -> int:
        """Memory of one token's keys and values."""
        return 2 * self._layers * self._kv_heads * self._head_dim * self._dtype.itemsize

    @property
    def budget(self) -> int:
        """Tokens that all sequences together may come to."""
        return self._budget

    @property
    def bytes_in_use(self) -> int:
        """Memory that running sequences hold now, filled or not."""
        return self._used * self.bytes_per_token

    def limit(self, num_tokens: int) -> None:
        """Hold at most so many tokens; without a limit as many as fit into all slots.

        While a sequence grows its old storage lies beside the new one, on top of the budget if it
        must be.

        Raises:
            ConfigError: that holds nothing worth mentioning.
        """
        least = min(_GRANULE, self.max_length)
        if num_tokens < least:
            raise ConfigError(
                f"engine.kv_memory holds {num_tokens} tokens of this model, at"
                f" {self.bytes_per_token} bytes each; use at least {least * self.bytes_per_token}"
                " bytes, or 0 for the default"
            )
        self._budget = num_tokens

    def allocate(self, most: int | None = None) -> int:
        """Take an empty slot, with the promise of room for `most` tokens; None: the longest length.

        Raises:
            Overloaded: all slots are taken, or the tokens do not fit now.
            ContextLengthExceeded: they never will.
        """
        limit = min(self.max_length, self._budget) if most is None else most
        if limit > self.max_length:
            raise _too_long(limit, self.max_length)
        if limit > self._budget:
            raise ContextLengthExceeded(
                f"prompt and output may come to {limit} tokens, {limit * self.bytes_per_token}"
                f" bytes of cache; the cache memory (engine.kv_memory) holds {self._budget} tokens:"
                " ask for fewer, or serve with a larger --kv-memory"
            )
        if self.num_free == 0:
            raise Overloaded(
                f"all {self._num_slots} cache slots are taken; try again when a request has ended"
            )
        if self._promised + limit > self._budget:
            raise Overloaded(
                f"{limit} tokens do not fit now: {self._promised} of the {self._budget} that the"
                " cache memory (engine.kv_memory) holds are promised to running requests; try again"
                " when one has ended"
            )
        number = next(self._numbers)
        self._slots[number] = Slot(self._storage(0), limit)
        self._promised += limit
        return number

    def free(self, slot: int) -> None:
        """Give a slot and its memory back.

        Raises:
            RuntimeError: it is not allocated, or no longer.
        """
        held = self._slot(slot)
        del self._slots[slot]
        self._promised -= held.limit
        self._used -= held.capacity

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

        Returns the slot's storage, [layers, 2 (keys, values), kv_heads, capacity, head_dim],
        contiguous, good until the next call for the same slot: write to positions from its length
        on. Storage at least doubles when it grows, up to what was promised, so that appending costs
        O(1) per token on average.

        Raises:
            RuntimeError: the slot is not allocated, or no longer.
            ContextLengthExceeded: `length` is over what was promised.
        """
        held = self._slot(slot)
        self.check_fits(slot, length)
        if length > held.capacity:
            self._grow(held, min(max(rounded(length), 2 * held.capacity), held.limit))
        return held.storage

    def check_fits(self, slot: int, length: int) -> None:
        """Raises ContextLengthExceeded if the slot cannot come to `length` tokens."""
        limit = self._slot(slot).limit
        if length > limit:
            raise _too_long(length, limit)

    def commit(self, slot: int, length: int) -> None:
        """Declare that the slot's storage is filled up to `length`.

        Raises:
            RuntimeError: the slot is not allocated, or no room was reserved for that many tokens.
        """
        held = self._slot(slot)
        if length > held.capacity:
            raise RuntimeError(f"slot {slot} has no room for {length} tokens; reserve it first")
        held.length = length

    def _make_room(self, num_tokens: int) -> None:
        """Called before storage for so many tokens is taken."""

    def _grow(
        self, held: Slot, capacity: int, source: Slot | None = None, length: int | None = None
    ) -> None:
        """Give a slot new storage, filled with the first tokens of its own or another's."""
        source = source or held
        length = held.length if length is None else length
        self._make_room(capacity)
        storage = self._storage(capacity)
        storage[:, :, :, :length] = source.storage[:, :, :, :length]
        self._used += capacity - held.capacity
        held.storage, held.length = storage, length

    def _slot(self, slot: int) -> Slot:
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


def rounded(length: int) -> int:
    """The tokens of a storage that holds so many."""
    return -(-length // _GRANULE) * _GRANULE


def _too_long(length: int, limit: int) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"a sequence of {length} tokens is longer than the {limit} allowed;"
        " shorten the prompt or ask for fewer tokens"
    )
