from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from outrider.engine import KVCache, ModelConfig
from outrider.errors import Overloaded, RequestError

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


def fill(cache: KVCache, slot: int, length: int) -> None:
    """Fill a slot up to `length`, each position with its own number."""
    storage = cache.reserve(slot, length)
    start = cache.length(slot)
    marks = torch.arange(start, length, dtype=storage.dtype)
    storage[:, :, :, start:length] = marks[:, None]
    cache.commit(slot, length)


def marks(cache: KVCache, slot: int) -> list[float]:
    """What every layer, head and component holds, position by position."""
    held = cache.reserve(slot, cache.length(slot))[:, :, :, : cache.length(slot)]
    expected = held[0, 0, 0, :, 0]
    assert (held == expected[:, None]).all()
    return expected.tolist()


def run(cache: KVCache, prompt: list[int], output: int, tenant: str = "a") -> int:
    """One whole sequence; returns how many tokens of its prompt were there already."""
    slot, reused = cache.open(prompt, len(prompt) + output, tenant)
    assert marks(cache, slot) == list(range(reused))
    tokens = [*prompt, *range(100, 100 + output)]
    fill(cache, slot, len(tokens) - 1)
    cache.retire(slot, tokens)
    return reused


def tight(num_tokens: int, **changes: Any) -> KVCache:
    cache = make(**{"num_slots": 8, **changes})
    cache.limit(num_tokens)
    return cache


PROMPT = list(range(40))


def test_a_sequence_that_goes_on_where_one_ended_takes_its_storage_over() -> None:
    cache = make()
    run(cache, PROMPT, 20)
    chat = [*PROMPT, *range(100, 119)]  # the last token of the output was never fed
    assert run(cache, [*chat, 1, 2, 3], 5) == 59
    assert cache.num_retained == 1
    assert cache.num_free == 2


def test_a_shared_beginning_is_copied_and_stays_for_others() -> None:
    cache = make()
    system = list(range(30))
    assert run(cache, [*system, *range(50, 60)], 5) == 0
    assert run(cache, [*system, *range(60, 70)], 5) == 30  # it ends within any granule
    assert run(cache, [*system, *range(70, 80)], 5) == 30
    assert cache.num_retained == 3


def test_two_system_prompts_are_told_apart() -> None:
    cache = make()
    one, two = list(range(30)), [*range(20), *range(30, 40)]
    run(cache, [*one, 1], 5)
    assert run(cache, [*two, 1], 5) == 20
    assert run(cache, [*one, 2], 5) == 30
    assert run(cache, [*two, 2], 5) == 30


def test_the_last_token_of_a_prompt_is_always_left_to_be_fed() -> None:
    cache = make()
    run(cache, PROMPT, 5)
    assert run(cache, PROMPT, 5) == 39
    assert run(cache, PROMPT[:25], 5) == 24


def test_the_same_sequence_is_kept_once() -> None:
    cache = make()
    for _ in range(3):
        run(cache, PROMPT, 5)
    assert cache.num_retained == 1


def test_nothing_is_shared_between_tenants() -> None:
    cache = make()
    run(cache, PROMPT, 5, tenant="a")
    assert run(cache, PROMPT, 5, tenant="b") == 0
    slot, _ = cache.open(PROMPT, 50, "a")
    fill(cache, slot, 40)
    assert cache.open(PROMPT, 50, "c")[1] == 0


def test_the_prompt_of_a_running_sequence_is_shared_as_far_as_it_was_read() -> None:
    cache = make(num_slots=3)
    running, _ = cache.open(PROMPT, 60, "a")
    fill(cache, running, 25)
    assert cache.open([*PROMPT, 7], 60, "a")[1] == 25
    fill(cache, running, 55)  # its output is not its prompt, and may yet be undone
    other, reused = cache.open([*PROMPT, *range(100, 110)], 60, "a")
    assert reused == 40
    assert marks(cache, other) == list(range(40))


def test_a_running_sequence_that_has_read_nothing_hides_no_other() -> None:
    cache = make(num_slots=4)
    run(cache, [*PROMPT, 5], 5)
    for last in (4, 6):
        cache.open([*PROMPT, last], 60, "a")
    assert cache.open([*PROMPT, 7], 60, "a")[1] == 40


def test_what_is_short_is_neither_kept_nor_copied() -> None:
    cache = make()
    run(cache, PROMPT[:10], 3)
    assert cache.num_retained == 0
    run(cache, PROMPT, 3)
    assert run(cache, [*PROMPT[:15], 9, 9], 3) == 0


def test_a_slot_without_a_tenant_is_not_kept() -> None:
    cache = make()
    slot = cache.allocate()
    fill(cache, slot, 40)
    cache.retire(slot, PROMPT)
    assert (cache.num_retained, cache.bytes_in_use, cache.bytes_retained) == (0, 0, 0)


def test_a_slot_in_doubt_is_neither_kept_nor_shared() -> None:
    cache = make()
    slot, _ = cache.open(PROMPT, 60, "a")
    fill(cache, slot, 50)
    cache.distrust(slot)
    assert cache.open(PROMPT, 60, "a")[1] == 0
    cache.retire(slot, [*PROMPT, *range(100, 110)])
    assert cache.num_retained == 0
    cache.distrust(slot)  # again, and freed


def test_only_what_the_slot_holds_is_kept() -> None:
    cache = make()
    slot, _ = cache.open(PROMPT, 60, "a")
    fill(cache, slot, 20)  # cancelled while its prompt was read
    cache.retire(slot, PROMPT)
    assert run(cache, PROMPT, 5) == 20


def test_the_least_recently_used_goes_first_when_room_is_needed() -> None:
    cache = tight(210)
    for first in (1, 2, 3):
        run(cache, [first, *PROMPT], 10)  # 51 tokens of storage each
    run(cache, [1, *PROMPT], 10)  # used again
    fill(cache, cache.allocate(60), 60)
    kept = [first for first in (1, 2, 3) if list(cache._index.matches("a", [first, *PROMPT]))]
    assert kept == [1, 3]


def test_retained_sequences_never_make_admission_fail() -> None:
    cache = tight(256)
    for first in range(10):
        run(cache, [first, *PROMPT], 10)
    assert cache.num_retained > 1
    slot = cache.allocate(256)
    fill(cache, slot, 256)
    assert cache.num_retained == 0
    assert cache.bytes_in_use == 256 * BYTES_PER_TOKEN


def test_a_long_chat_in_a_tight_budget_goes_on_in_its_own_storage() -> None:
    """There is no room for a copy beside it."""
    cache = tight(256)
    run(cache, list(range(150)), 10)
    assert run(cache, [*range(150), 7, 7], 10) == 150


def test_a_storage_larger_than_promised_is_cut_when_it_is_taken_over() -> None:
    cache = tight(1000)
    slot, _ = cache.open(PROMPT, 500, "a")
    fill(cache, slot, 300)  # grown to more than it holds
    cache.retire(slot, [*PROMPT, *range(100, 360)])
    again, reused = cache.open([*PROMPT, *range(100, 360), 1], 305, "a")
    assert reused == 300
    assert marks(cache, again) == list(range(300))
    assert cache.reserve(again, 301).shape[3] <= 305


def test_an_impossible_token_id_takes_no_slot() -> None:
    cache = make()
    with pytest.raises(RequestError, match="-1"):
        cache.open([1, -1], 10, "a")
    assert cache.num_free == 2
    cache.limit(64)
    cache.allocate(64)


def test_a_storage_that_cannot_be_had_takes_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make()
    run(cache, PROMPT, 5)
    storage = cache._storage

    def failing(capacity: int) -> torch.Tensor:
        if capacity:
            raise RuntimeError("out of memory")
        return storage(capacity)

    monkeypatch.setattr(cache, "_storage", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        cache.open([*PROMPT, 1], 60, "a")
    assert (cache.num_free, cache.bytes_in_use) == (2, 0)
    assert len(cache._index) == cache.num_retained


def test_clearing_gives_everything_back() -> None:
    cache = make()
    run(cache, PROMPT, 5)
    slot, _ = cache.open([*PROMPT, 1], 60, "a")
    cache.clear()
    assert (cache.num_free, cache.num_retained, len(cache._index)) == (2, 0, 0)
    assert (cache.bytes_in_use, cache.bytes_retained, cache._promised) == (0, 0, 0)
    with pytest.raises(RuntimeError):
        cache.length(slot)


def test_the_number_of_kept_sequences_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.engine.cache._MAX_RETAINED", 3)
    cache = tight(100_000)
    for first in range(10):
        run(cache, [first, *PROMPT], 5)
    assert cache.num_retained == 3
    assert run(cache, [9, *PROMPT, 1], 5) == 41


def test_any_sequence_of_uses_keeps_the_budget_and_the_contents() -> None:
    """Every slot always holds what its tokens say, whatever was shared, moved and dropped."""
    draw = random.Random(3)
    cache = tight(700, num_slots=6)
    running: dict[int, tuple[list[int], int]] = {}
    stems = [[stem] * 20 for stem in range(3)]
    for _ in range(3000):
        if draw.random() < 0.4:
            prompt = [*draw.choice(stems), *(draw.randrange(2) for _ in range(draw.randrange(60)))]
            most = len(prompt) + draw.randrange(1, 150)
            try:
                slot, reused = cache.open(prompt, most, draw.choice("ab"))
            except Overloaded:
                continue
            running[slot] = (prompt, most)
            assert marks(cache, slot) == [key(prompt, place) for place in range(reused)]
        elif running:
            slot = draw.choice(list(running))
            tokens, most = running[slot]
            if draw.random() < 0.5:
                del running[slot]
                if draw.random() < 0.2:
                    cache.free(slot)
                else:
                    cache.retire(slot, tokens)
            else:
                grown = [*tokens, *(draw.randrange(2) for _ in range(draw.randrange(40)))][:most]
                start, end = cache.length(slot), draw.randint(cache.length(slot), len(grown))
                storage = cache.reserve(slot, end)
                for place in range(start, end):
                    storage[:, :, :, place] = key(grown, place)
                cache.commit(slot, end)
                running[slot] = (grown, most)
        held = sum(cache._slots[slot].capacity for slot in running)
        kept = sum(slot.capacity for slot in cache._retained.values())
        assert cache.bytes_in_use == held * BYTES_PER_TOKEN
        assert cache.bytes_retained == kept * BYTES_PER_TOKEN
        assert held + kept <= 700
        assert cache._promised == sum(most for _, most in running.values()) <= 700
        assert len(cache._index) == len(running) + cache.num_retained
    for slot, (tokens, _) in running.items():
        length = cache.length(slot)
        assert marks(cache, slot) == [key(tokens, place) for place in range(length)]


def key(tokens: list[int], place: int) -> float:
    """A number that stands for the tokens up to a position, as keys and values do."""
    return float(hash(tuple(tokens[: place + 1])) % 2**20)
