from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.engine import Chunk, Decoder, KVCache, load_model
from outrider.errors import ContextLengthExceeded, RequestError

CLOSE = 1e-3
CPU = torch.device("cpu")


def run(decoder: Decoder, cache: KVCache, slot: int, ids: list[int]) -> torch.Tensor:
    return decoder.forward([Chunk(slot, ids, len(ids))], cache)[0]


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    assert found.dtype == torch.float32
    return (found - expected).abs().max().item()


def new_cache(decoder: Decoder, slots: int = 3, length: int = 100) -> KVCache:
    return decoder.new_cache(num_slots=slots, max_length=length)


def test_a_sequence_alone_gets_the_reference_logits(pair: Any, tokens: list[int]) -> None:
    cache = new_cache(pair.decoder)
    found = run(pair.decoder, cache, cache.allocate(), tokens)
    assert distance(found, pair.expected(tokens)) < CLOSE


def test_the_reference_logits_vary_enough_to_tell_models_apart(
    pair: Any, tokens: list[int]
) -> None:
    assert pair.expected(tokens).std() > 100 * CLOSE


def test_a_prompt_in_pieces_gets_the_same_logits(pair: Any, tokens: list[int]) -> None:
    cache = new_cache(pair.decoder)
    slot = cache.allocate()
    pieces = [tokens[:9], tokens[9:10], tokens[10:11], tokens[11:30], tokens[30:]]
    found = torch.cat([run(pair.decoder, cache, slot, piece) for piece in pieces])
    assert distance(found, pair.expected(tokens)) < CLOSE


def test_a_ragged_batch_gives_each_sequence_its_own_logits(pair: Any, tokens: list[int]) -> None:
    cache = new_cache(pair.decoder)
    first, second, third = (cache.allocate() for _ in range(3))
    pair.decoder.forward([Chunk(first, tokens[:13], 0), Chunk(second, tokens[5:7], 1)], cache)
    found = pair.decoder.forward(
        [
            Chunk(second, tokens[7:8], 1),
            Chunk(first, tokens[13:18], 3),
            Chunk(third, tokens[20:35], 0),
        ],
        cache,
    )
    assert distance(found[0], pair.expected(tokens[5:8])[-1:]) < CLOSE
    assert distance(found[1], pair.expected(tokens[:18])[-3:]) < CLOSE
    assert found[2].shape == (0, 97)
    assert [cache.length(slot) for slot in (first, second, third)] == [18, 3, 15]
    follow = run(pair.decoder, cache, third, tokens[35:36])
    assert distance(follow, pair.expected(tokens[20:36])[-1:]) < CLOSE


def test_after_a_rollback_the_sequence_goes_on_as_if_nothing_had_been(
    pair: Any, tokens: list[int]
) -> None:
    cache = new_cache(pair.decoder)
    slot = cache.allocate()
    run(pair.decoder, cache, slot, tokens[:12])
    run(pair.decoder, cache, slot, [1, 2, 3, 4, 5])
    cache.truncate(slot, 10)
    found = run(pair.decoder, cache, slot, tokens[10:16])
    further = run(pair.decoder, cache, slot, tokens[16:17])
    expected = pair.expected(tokens[:17])[10:]
    assert distance(torch.cat([found, further]), expected) < CLOSE


def test_logits_of_a_row_hardly_depend_on_what_else_is_in_the_batch(
    pair: Any, tokens: list[int]
) -> None:
    alone, together = new_cache(pair.decoder), new_cache(pair.decoder)
    found = run(pair.decoder, alone, alone.allocate(), tokens[:20])
    slots = [together.allocate() for _ in range(3)]
    batch = [Chunk(slots[0], tokens[3:30], 4), Chunk(slots[1], tokens[:20], 20)]
    beside = pair.decoder.forward([*batch, Chunk(slots[2], [5], 1)], together)[1]
    assert distance(beside, found) < 1e-4


def test_a_truncated_model_equals_the_reference_with_fewer_layers(
    pair: Any, tokens: list[int], reference_of: Callable[..., Any], tmp_path: Path
) -> None:
    shorter = reference_of(pair.folder)
    shorter.model.layers = shorter.model.layers[:2]
    shorter.config.num_hidden_layers = 2
    expected = shorter(torch.tensor([tokens])).logits[0].detach()
    truncated = pair.decoder.truncated(2)
    cache = new_cache(truncated)
    assert truncated.config.num_layers == 2
    assert distance(run(truncated, cache, cache.allocate(), tokens), expected) < CLOSE
    loaded = load_model(pair.folder, dtype=torch.float32, device=CPU, num_layers=2)
    cache = new_cache(loaded)
    assert distance(run(loaded, cache, cache.allocate(), tokens), expected) < CLOSE


@pytest.mark.parametrize("num_layers", [0, 4])
def test_a_model_cannot_be_truncated_to_layers_it_does_not_have(
    llama: Any, num_layers: int
) -> None:
    with pytest.raises(ValueError, match=f"num_layers {num_layers} must lie between 1"):
        llama.decoder.truncated(num_layers)


def test_bfloat16_agrees_loosely_with_the_reference_in_bfloat16(
    pair: Any, tokens: list[int], reference_of: Callable[..., Any]
) -> None:
    decoder = load_model(pair.folder, dtype=torch.bfloat16, device=CPU)
    cache = new_cache(decoder)
    found = run(decoder, cache, cache.allocate(), tokens)
    exact = pair.expected(tokens)
    reference = reference_of(pair.folder, torch.bfloat16)
    theirs = reference(torch.tensor([tokens])).logits[0].float().detach()
    # As near to the exact logits as the reference is in the same number format.
    assert (found - exact).square().mean() < 2 * (theirs - exact).square().mean()


@pytest.mark.parametrize("bad", [-1, 97])
def test_a_token_outside_the_vocabulary_is_refused_before_anything_is_written(
    llama: Any, tokens: list[int], bad: int
) -> None:
    cache = new_cache(llama.decoder)
    first, second = cache.allocate(), cache.allocate()
    before = run(llama.decoder, cache, first, tokens[:8])
    with pytest.raises(RequestError, match=f"token id {bad} is outside"):
        llama.decoder.forward([Chunk(first, [1, 2], 1), Chunk(second, [3, bad], 1)], cache)
    assert (cache.length(first), cache.length(second)) == (8, 0)
    assert before.shape == (8, 97)


def test_a_step_that_fails_midway_leaves_all_lengths_as_they_were(
    llama: Any, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = new_cache(llama.decoder)
    slot, other = cache.allocate(), cache.allocate()
    run(llama.decoder, cache, slot, tokens[:8])

    def fail(*_: Any) -> torch.Tensor:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(llama.decoder, "_logits", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            llama.decoder.forward([Chunk(slot, [1], 1), Chunk(other, [2], 1)], cache)
    assert (cache.length(slot), cache.length(other)) == (8, 0)
    found = run(llama.decoder, cache, slot, tokens[8:12])
    assert distance(found, llama.expected(tokens[:12])[8:]) < CLOSE


def test_a_sequence_longer_than_the_cache_allows_is_refused(llama: Any, tokens: list[int]) -> None:
    cache = new_cache(llama.decoder, length=10)
    slot = cache.allocate()
    run(llama.decoder, cache, slot, tokens[:10])
    with pytest.raises(ContextLengthExceeded, match="11 tokens is longer than the 10"):
        run(llama.decoder, cache, slot, [1])
    assert cache.length(slot) == 10


def test_the_whole_context_of_the_model_can_be_used(llama: Any) -> None:
    ids = [index % 97 for index in range(256)]
    cache = new_cache(llama.decoder, length=256)
    found = run(llama.decoder, cache, cache.allocate(), ids)
    assert distance(found, llama.expected(ids)) < CLOSE


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([], "at least one chunk"),
        ([Chunk(0, [1], 1), Chunk(0, [2], 1)], "one per slot"),
        ([Chunk(0, [], 0)], "at least one token"),
        ([Chunk(0, [1], 2)], "2 logits of 1 tokens"),
        ([Chunk(0, [1], -1)], "-1 logits of 1 tokens"),
    ],
)
def test_an_impossible_batch_is_refused(llama: Any, chunks: list[Chunk], message: str) -> None:
    cache = new_cache(llama.decoder)
    assert cache.allocate() == 0
    with pytest.raises(ValueError, match=message):
        llama.decoder.forward(chunks, cache)


def test_a_freed_slot_cannot_be_stepped(llama: Any) -> None:
    cache = new_cache(llama.decoder)
    slot = cache.allocate()
    cache.free(slot)
    with pytest.raises(RuntimeError, match=f"slot {slot} is not allocated"):
        run(llama.decoder, cache, slot, [1])


def test_a_cache_of_another_model_is_refused(llama: Any) -> None:
    cache = new_cache(llama.decoder.truncated(1))
    with pytest.raises(ValueError, match="a cache of 1 layers cannot serve a model of 3"):
        run(llama.decoder, cache, cache.allocate(), [1])


def test_the_real_model_gets_the_reference_logits(
    smollm2_folder: Path, pair_of: Callable[[Path], Any]
) -> None:
    real = pair_of(smollm2_folder)
    ids = [1, 4093, 198, 504, 3575, 282, 4649, 314, 260, 9, 28, 1093, 30, 253, 1165, 2]
    cache = new_cache(real.decoder)
    slot = cache.allocate()
    pieces = [ids[:10], ids[10:11], ids[11:]]
    found = torch.cat([run(real.decoder, cache, slot, piece) for piece in pieces])
    assert distance(found, real.expected(ids)) < CLOSE
