"""Keys and values of the tokens that each sequence has been through.

What the running sequences do not use of the budget holds sequences that have ended, for later ones
of the same tenant that begin alike. They are dropped, least recently used first, as soon as a
running one needs the room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence
from typing import Final

import torch

from outrider.engine.architecture import ModelConfig
from outrider.engine.prefix import PrefixIndex
from outrider.engine.slots import Slot, Slots, rounded

__all__ = ["KVCache"]

_WORTHWHILE: Final = 16
"""Tokens: shorter beginnings are neither kept nor reused, to compute them costs no more."""

_MAX_RETAINED: Final = 1024
"""Sequences kept at most, so that what is known of them stays small beside their storage."""


class KVCache(Slots):
    """Slots of keys and values, and what sequences of one tenant have in common."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_slots: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(
            config, num_slots=num_slots, max_length=max_length, dtype=dtype, device=device
        )
        self._retained: OrderedDict[int, Slot] = OrderedDict()  # least recently used first
        self._index = PrefixIndex()
        self._kept = 0  # tokens that retained sequences hold

    @property
    def num_retained(self) -> int:
        """Sequences that have ended and are kept."""
        return len(self._retained)

    @property
    def bytes_retained(self) -> int:
        """Memory that is held for later sequences, and given up when a running one needs it."""
        return self._kept * self.bytes_per_token

    def open(self, prompt_ids: Sequence[int], most: int, tenant: str) -> tuple[int, int]:
        """Take a slot for a sequence that begins with `prompt_ids`, and fill in what is known.

        The beginning is taken from the tenant's sequence that shares the most of it, retained or
        running: moved, if the new one goes on where a retained one ended, else copied. The last
        token is always left to be fed, since its logits are wanted.

        Args:
            prompt_ids: stay as they are for as long as the slot is held.
            most: tokens that the sequence may come to.
            tenant: whose it is.

        Returns the slot, and how many tokens it holds already.

        Raises:
            Overloaded, ContextLengthExceeded: see `allocate`.
            RequestError: an impossible token id.
        """
        slot = self.allocate(most)
        try:
            source, shared = self._longest(prompt_ids, tenant)
            if shared >= _WORTHWHILE:
                self._share(slot, source, shared, len(prompt_ids))
            self._index.add(slot, tenant, prompt_ids)
        except BaseException:
            self.free(slot)
            raise
        self._slots[slot].tenant = tenant
        return slot, self._slots[slot].length

    def catch_up(self, slot: int, most: int, reading: Container[int]) -> bool:
        """Take over what others have read meanwhile of a prompt that is still being read.

        Args:
            slot: of `open`.
            most: tokens that it may hold afterwards.
            reading: slots that get on with theirs.

        Returns False if it is better to wait: another one, that is ahead or came first, reads what
        this one needs as well. There is always one that need not wait.

        Raises:
            RuntimeError: the slot is not allocated, or no longer.
        """
        held = self._slot(slot)
        most = min(most, self._index.size(slot))
        source, shared = held, held.length
        for number, common in self._index.like(slot):
            reach = min(common, most)
            if reach < shared + _WORTHWHILE:
                break
            other = self._retained.get(number) or self._slots[number]
            if other.length < reach and number in reading:
                if (other.length, -number) > (held.length, -slot):
                    return False
            elif other is not held and min(reach, other.length) >= shared + _WORTHWHILE:
                source, shared = other, min(reach, other.length)
        if source is not held:
            storage = self.reserve(slot, shared)
            new = slice(held.length, shared)
            with torch.inference_mode():  # as the passes that made the storage
                storage[:, :, :, new] = source.storage[:, :, :, new]
            held.length = shared
        return True

    def retire(self, slot: int, token_ids: Sequence[int]) -> None:
        """Give a slot back, and keep what it holds for as long as nobody needs the room.

        Only what `open` gave is kept, and nothing that is short or that a kept one holds as well.

        Args:
            slot: whose sequence has ended.
            token_ids: those whose keys and values it surely holds; may be longer than the slot.

        Raises:
            RuntimeError: it is not allocated, or no longer.
        """
        held = self._slot(slot)
        length = min(held.length, len(token_ids))
        self.free(slot)
        if held.tenant is None or length < _WORTHWHILE:
            return
        kept_ids = token_ids[:length]
        for number, common in self._index.matches(held.tenant, kept_ids):
            if common < length:
                break
            if number in self._retained:
                self._retained.move_to_end(number)
                return
        held.length = length
        number = next(self._numbers)
        self._index.add(number, held.tenant, kept_ids)
        self._retained[number] = held
        self._kept += held.capacity
        if len(self._retained) > _MAX_RETAINED:
            self._evict()

    def distrust(self, slot: int) -> None:
        """Let nobody share what a slot holds, now or later: something went wrong with it.

        Slots that are not allocated any more are ignored.
        """
        self._index.remove(slot)
        if slot in self._slots:
            self._slots[slot].tenant = None

    def free(self, slot: int) -> None:
        super().free(slot)
        self._index.remove(slot)

    def forget(self) -> None:
        """Drop all retained sequences."""
        while self._retained:
            self._evict()

    def clear(self) -> None:
        """Give everything back, running sequences too."""
        self.forget()
        for slot in list(self._slots):
            self.free(slot)

    def _longest(self, prompt_ids: Sequence[int], tenant: str) -> tuple[int, int]:
        """The sequence that holds most of the prompt but its last token, and how much."""
        source, shared = -1, 0
        for number, common in self._index.matches(tenant, prompt_ids):
            if common <= shared:
                break
            # A running sequence may not have got as far as its prompt reaches.
            held = self._retained.get(number) or self._slots[number]
            usable = min(common, held.length, len(prompt_ids) - 1)
            if usable > shared:
                source, shared = number, usable
        return source, shared

    def _share(self, slot: int, source: int, length: int, coming: int) -> None:
        """Fill an empty slot with the first tokens of another, with room for those to come."""
        held = self._slots[slot]
        kept = self._retained.get(source)
        if kept is None:
            self._grow(held, min(rounded(coming), held.limit), self._slots[source], length)
            return
        capacity = min(rounded(coming), held.limit)
        self._retained.move_to_end(source)
        if length == kept.length or self._used + kept.capacity + capacity > self._budget:
            self._drop(source)
            if kept.capacity <= held.limit:
                self._used += kept.capacity
                held.storage, held.length = kept.storage, length
                return
        self._grow(held, capacity, kept, length)

    def _make_room(self, num_tokens: int) -> None:
        while self._retained and self._used + self._kept + num_tokens > self._budget:
            self._evict()

    def _evict(self) -> None:
        self._drop(next(iter(self._retained)))

    def _drop(self, number: int) -> None:
        self._kept -= self._retained.pop(number).capacity
        self._index.remove(number)
