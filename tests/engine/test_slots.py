from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider.engine import KVCache, ModelConfig
from outrider.errors import ConfigError, ContextLengthExceeded, Overloaded

CONFIG = ModelConfig.from_hf(
    {
        "model_type": "llama",
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 1000,
    }
)
BYTES_PER_TOKEN = 2 * 2 * 2 * 4 * 4  # layers, keys and values, heads, head width, float32


def make(**changes: Any) -> KVCache:
    options: dict[str, Any] = {"num_slots": 2, "max_length": 1000}
    return KVCache(
        CONFIG, dtype=torch.float32, device=torch.device("cpu"), **{**options, **changes}
    )


def tight(num_tokens: int, **changes: Any) -> KVCache:
    cache = make(**{"num_slots": 8, **changes})
    cache.limit(num_tokens)
    return cache


def test_slots_run_out_and_come_back() -> None:
    cache = make()
    first = cache.allocate()
    cache.allocate()
    assert cache.num_free == 0
    with pytest.raises(Overloaded, match="all 2 cache slots are taken"):
        cache.allocate()
    cache.free(first)
    assert cache.num_free == 1
    cache.allocate()
    assert cache.num_free == 0


def test_a_freed_slot_cannot_be_freed_again() -> None:
    cache = make()
    slot = cache.allocate()
    cache.free(slot)
    with pytest.raises(RuntimeError, match=f"slot {slot} is not allocated"):
        cache.free(slot)
    assert cache.num_free == 2


def test_a_freed_slot_cannot_be_used_even_after_its_place_is_taken_again() -> None:
    cache = make(num_slots=1)
    slot = cache.allocate()
    cache.free(slot)
    assert cache.allocate() != slot
    for use in (
        lambda: cache.length(slot),
        lambda: cache.truncate(slot, 0),
        lambda: cache.reserve(slot, 1),
        lambda: cache.commit(slot, 0),
    ):
        with pytest.raises(RuntimeError, match="not allocated"):
            use()


def test_reserving_leaves_the_length_alone_and_committing_sets_it() -> None:
    cache = make()
    slot = cache.allocate()
    cache.reserve(slot, 5)
    assert cache.length(slot) == 0
    cache.commit(slot, 5)
    assert cache.length(slot) == 5


def test_a_length_without_room_cannot_be_committed() -> None:
    cache = make()
    slot = cache.allocate()
    with pytest.raises(RuntimeError, match="reserve it first"):
        cache.commit(slot, 1)


def test_rollback_forgets_the_tokens_from_there_on() -> None:
    cache = make()
    slot = cache.allocate()
    cache.reserve(slot, 5)
    cache.commit(slot, 5)
    cache.truncate(slot, 5)
    cache.truncate(slot, 2)
    assert cache.length(slot) == 2


@pytest.mark.parametrize("length", [-1, 6])
def test_rollback_cannot_invent_tokens(length: int) -> None:
    cache = make()
    slot = cache.allocate()
    cache.reserve(slot, 5)
    cache.commit(slot, 5)
    with pytest.raises(ValueError, match=f"holds 5 tokens and cannot be cut to {length}"):
        cache.truncate(slot, length)
    assert cache.length(slot) == 5


def test_growing_keeps_what_was_written() -> None:
    cache = make()
    slot = cache.allocate()
    storage = cache.reserve(slot, 3)
    storage[:, :, :, :3] = 7.0
    cache.commit(slot, 3)
    grown = cache.reserve(slot, 500)
    assert grown.shape[:3] == (2, 2, 2)
    assert grown.shape[3] >= 500
    assert (grown[:, :, :, :3] == 7.0).all()


def test_memory_follows_use_and_is_given_back() -> None:
    cache = make(num_slots=50)
    slots = [cache.allocate() for _ in range(50)]
    assert cache.bytes_in_use == 0
    cache.reserve(slots[0], 10)
    assert 10 * BYTES_PER_TOKEN <= cache.bytes_in_use <= 64 * BYTES_PER_TOKEN
    cache.free(slots[0])
    assert cache.bytes_in_use == 0


def test_appending_one_by_one_moves_the_storage_only_a_few_times() -> None:
    cache = make()
    slot = cache.allocate()
    places = set()
    for length in range(1, 1001):
        places.add(cache.reserve(slot, length).shape[3])
        cache.commit(slot, length)
    assert len(places) <= 5


def test_no_slot_grows_past_the_longest_length() -> None:
    cache = make(max_length=100)
    slot = cache.allocate()
    cache.reserve(slot, 100)
    with pytest.raises(ContextLengthExceeded, match="101 tokens is longer than the 100 allowed"):
        cache.reserve(slot, 101)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_slots": 0}, "cache of 0 slots"),
        ({"max_length": 0}, "sequences of 0 tokens"),
        ({"max_length": 1001}, "sequences of 1001 tokens .* context length of 1000"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**changes)


def test_a_slot_never_grows_past_what_was_promised() -> None:
    cache = make()
    slot = cache.allocate(100)
    for length in range(1, 101):
        assert cache.reserve(slot, length).shape[3] <= 100
        cache.commit(slot, length)
    with pytest.raises(ContextLengthExceeded, match="101 tokens is longer than the 100 allowed"):
        cache.reserve(slot, 101)
    with pytest.raises(ContextLengthExceeded):
        cache.check_fits(slot, 101)


def test_what_does_not_fit_now_is_refused_and_fits_later() -> None:
    cache = tight(300)
    first = cache.allocate(200)
    cache.allocate(100)
    with pytest.raises(Overloaded, match="1 tokens do not fit now: 300 of the 300"):
        cache.allocate(1)
    cache.free(first)
    cache.allocate(200)


def test_what_never_fits_is_refused_with_the_numbers_and_the_remedy() -> None:
    cache = tight(300)
    message = f"301 tokens, {301 * BYTES_PER_TOKEN} bytes.*holds 300 tokens.*--kv-memory"
    with pytest.raises(ContextLengthExceeded, match=message):
        cache.allocate(301)
    assert cache.num_free == 8


def test_a_budget_that_holds_next_to_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.kv_memory.*use at least 8192 bytes"):
        tight(63)
