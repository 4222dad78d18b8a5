"""The compiled decoder: what it computes, and that nothing else has a say in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

from outrider.engine import Chunk, KVCache
from outrider.engine.kernels import Threads
from outrider.engine.quantize import load_quantized
from outrider.engine.quantized import QuantizedDecoder
from outrider.errors import ContextLengthExceeded, RequestError, UnsupportedModel
from tests.engine.rounding import rounded_logits

CLOSE = 0.02  # an activation that is rounded the other way weighs as much as this
LONG = 150

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "plain": lambda: LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "window-over-tiles": lambda: MistralConfig(**SHAPE, head_dim=32, sliding_window=40),
    "window-of-a-tile": lambda: MistralConfig(**SHAPE, sliding_window=32),
    "one-key-head": lambda: LlamaConfig(
        **{**SHAPE, "hidden_size": 160, "num_attention_heads": 20, "num_key_value_heads": 1},
        head_dim=16,
    ),
    "wide-heads": lambda: Qwen3Config(
        **{**SHAPE, "num_attention_heads": 2, "num_key_value_heads": 2}, head_dim=256
    ),
    "odd-widths": lambda: LlamaConfig(
        **{**SHAPE, "hidden_size": 72, "intermediate_size": 104, "vocab_size": 101}, head_dim=48
    ),
    "gemma": lambda: Gemma3TextConfig(
        **SHAPE,
        head_dim=32,
        query_pre_attn_scalar=20,
        sliding_window=33,
        final_logit_softcapping=4.0,
        layer_types=["sliding_attention", "full_attention"],
    ),
}


@pytest.fixture(scope="module")
def threads() -> Threads:
    return Threads(2)


@pytest.fixture(scope="module")
def ids() -> list[int]:
    draw = torch.Generator().manual_seed(3)
    return torch.randint(0, 97, (LONG,), generator=draw).tolist()


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(request.param, tmp_path_factory)


def save(name: str, factory: pytest.TempPathFactory) -> Path:
    """A random model of these shapes, every bias and norm random too."""
    folder = factory.mktemp(name)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def decoder(folder: Path, threads: Threads) -> QuantizedDecoder:
    return load_quantized(folder, threads=threads)


@pytest.fixture(scope="module")
def whole(decoder: QuantizedDecoder, ids: list[int]) -> torch.Tensor:
    """Logits of the long sequence read at once."""
    return in_pieces(decoder, ids, [LONG])


def new_cache(decoder: Any, slots: int = 3) -> KVCache:
    return decoder.new_cache(num_slots=slots, max_length=min(200, decoder.config.context_length))


def feed(decoder: Any, cache: KVCache, slot: int, ids: list[int], sizes: Iterable[int]) -> Any:
    rows, at = [], 0
    for size in sizes:
        rows.append(decoder.forward([Chunk(slot, ids[at : at + size], size)], cache)[0])
        at += size
    assert at == len(ids)
    return torch.cat(rows)


def in_pieces(decoder: Any, ids: list[int], sizes: Iterable[int]) -> torch.Tensor:
    cache = new_cache(decoder)
    return feed(decoder, cache, cache.allocate(), ids, sizes)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The root mean square difference, in standard deviations of what was expected."""
    assert found.shape == expected.shape
    assert found.dtype == torch.float32
    return ((found - expected).square().mean().sqrt() / expected.std()).item()


def test_any_family_gets_the_logits_of_exact_arithmetic(
    pair: Any, tokens: list[int], threads: Threads
) -> None:
    if pair.decoder.config.head_dim % 16:
        with pytest.raises(UnsupportedModel, match="head_dim 24 is no multiple of 16"):
            load_quantized(pair.folder, threads=threads)
        return
    expected = rounded_logits(pair.folder, tokens)
    found = in_pieces(load_quantized(pair.folder, threads=threads), tokens, [len(tokens)])
    assert distance(found, expected) < CLOSE


def test_any_shape_gets_the_logits_of_exact_arithmetic(
    folder: Path, whole: torch.Tensor, ids: list[int]
) -> None:
    assert distance(whole, rounded_logits(folder, ids)) < CLOSE


@pytest.mark.parametrize(
    "sizes",
    [
        [1] * LONG,
        [9, 1, 1, 19, 10, 2, 3, 105],
        [31, 1, 1, 31, 33, 53],
        [149, 1],
        [40, 4, 4, 4, 4, 5, 6, 7, 76],
    ],
    ids=lambda sizes: "-".join(map(str, sizes[:9])),
)
def test_a_prompt_in_pieces_gets_the_same_bits(
    decoder: QuantizedDecoder, whole: torch.Tensor, ids: list[int], sizes: list[int]
) -> None:
    assert torch.equal(in_pieces(decoder, ids, sizes), whole)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)], ids=str)
def test_company_in_any_order_leaves_every_bit_as_it_is(
    decoder: QuantizedDecoder, whole: torch.Tensor, ids: list[int], order: tuple[int, ...]
) -> None:
    cache = new_cache(decoder)
    slots = [cache.allocate() for _ in range(3)]
    other = in_pieces(decoder, ids[50:121], [71])
    decoder.forward([Chunk(slots[0], ids[:37], 0), Chunk(slots[1], ids[50:61], 0)], cache)
    chunks = [
        Chunk(slots[0], ids[37:45], 8),
        Chunk(slots[1], ids[61:121], 60),
        Chunk(slots[2], ids[:97], 2),
    ]
    found = dict(zip(order, decoder.forward([chunks[i] for i in order], cache), strict=True))
    assert torch.equal(found[0], whole[37:45])
    assert torch.equal(found[1], other[11:])
    assert torch.equal(found[2], whole[95:97])
    further = decoder.forward([Chunk(slots[0], ids[45:46], 1), Chunk(slots[2], [5], 1)], cache)
    assert torch.equal(further[0], whole[45:46])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_bits(
    folder: Path, whole: torch.Tensor, ids: list[int], count: int
) -> None:
    decoder = load_quantized(folder, threads=Threads(count))
    assert torch.equal(in_pieces(decoder, ids, [77, 8, 65]), whole)


def test_after_a_rollback_the_bits_are_as_if_nothing_had_been(
    decoder: QuantizedDecoder, whole: torch.Tensor, ids: list[int]
) -> None:
    cache = new_cache(decoder)
    slot = cache.allocate()
    feed(decoder, cache, slot, ids[:70], [70])
    feed(decoder, cache, slot, [1, 2, 3, 4, 5] * 4, [20])
    cache.truncate(slot, 60)
    assert torch.equal(feed(decoder, cache, slot, ids[60:], [5, 85]), whole[60:])


def test_a_beginning_copied_from_another_slot_gives_the_same_bits(
    decoder: QuantizedDecoder, whole: torch.Tensor, ids: list[int]
) -> None:
    cache = new_cache(decoder)
    first, held = cache.open(ids, LONG, "tenant")
    assert held == 0
    feed(decoder, cache, first, ids[:100], [100])
    for _ in range(2):  # from a running sequence, and from one that has ended
        slot, held = cache.open(ids[:90], LONG, "tenant")
        assert held == 89
        assert torch.equal(feed(decoder, cache, slot, ids[held:], [1, 30, 30]), whole[held:])
        cache.free(slot)
        if first is not None:
            cache.retire(first, ids[:100])
            first = None


@pytest.mark.parametrize("wanted", [0, 1, 5])
def test_a_row_that_is_wanted_has_the_same_bits_whether_others_are_or_not(
    decoder: QuantizedDecoder, whole: torch.Tensor, ids: list[int], wanted: int
) -> None:
    cache = new_cache(decoder)
    slot = cache.allocate()
    (found,) = decoder.forward([Chunk(slot, ids[:40], wanted)], cache)
    assert torch.equal(found, whole[40 - wanted : 40])
    assert torch.equal(feed(decoder, cache, slot, ids[40:], [110]), whole[40:])


def test_a_truncated_model_gets_the_logits_of_exact_arithmetic(
    decoder: QuantizedDecoder, folder: Path, ids: list[int]
) -> None:
    shorter = decoder.truncated(1)
    assert shorter.config.num_layers == 1
    assert shorter.threads is decoder.threads
    assert 0 < shorter.weight_bytes < decoder.weight_bytes
    found = in_pieces(shorter, ids[:80], [80])
    assert distance(found, rounded_logits(folder, ids[:80], num_layers=1)) < CLOSE


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, threads: Threads) -> QuantizedDecoder:
    """One model, where its shapes do not matter."""
    return load_quantized(save("plain", tmp_path_factory), threads=threads)


@pytest.mark.parametrize("num_layers", [0, 3])
def test_a_model_cannot_be_truncated_to_layers_it_does_not_have(
    plain: QuantizedDecoder, num_layers: int
) -> None:
    with pytest.raises(ValueError, match=f"num_layers {num_layers} must lie between 1"):
        plain.truncated(num_layers)


@pytest.mark.parametrize("bad", [-1, 97])
def test_a_token_outside_the_vocabulary_is_refused_before_anything_is_written(
    plain: QuantizedDecoder, ids: list[int], bad: int
) -> None:
    cache = new_cache(plain)
    first, second = cache.allocate(), cache.allocate()
    feed(plain, cache, first, ids[:8], [8])
    with pytest.raises(RequestError, match=f"token id {bad} is outside"):
        plain.forward([Chunk(first, [1, 2], 1), Chunk(second, [3, bad], 1)], cache)
    assert (cache.length(first), cache.length(second)) == (8, 0)


def test_a_sequence_that_would_grow_too_long_is_refused(plain: QuantizedDecoder) -> None:
    cache = plain.new_cache(num_slots=1, max_length=10)
    slot = cache.allocate()
    with pytest.raises(ContextLengthExceeded, match="11 tokens is longer than the 10"):
        plain.forward([Chunk(slot, [1] * 11, 1)], cache)
    assert cache.length(slot) == 0


def test_memory_that_runs_out_leaves_all_sequences_as_they_were(
    plain: QuantizedDecoder, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = new_cache(plain)
    slot, other = cache.allocate(), cache.allocate()
    feed(plain, cache, slot, ids[:8], [8])

    def fail(*_: Any) -> None:
        raise MemoryError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(Threads, "call", fail)
        with pytest.raises(MemoryError):
            plain.forward([Chunk(slot, ids[8:80], 1), Chunk(other, [2], 1)], cache)
    assert (cache.length(slot), cache.length(other)) == (8, 0)
    expected = in_pieces(plain, ids[:20], [20])[8:]
    assert torch.equal(feed(plain, cache, slot, ids[8:20], [12]), expected)


def test_the_cache_of_another_model_is_refused(plain: QuantizedDecoder, llama: Any) -> None:
    for cache in (new_cache(plain.truncated(1)), new_cache(llama.decoder.truncated(2))):
        with pytest.raises(ValueError, match="use the model's own new_cache"):
            plain.forward([Chunk(cache.allocate(), [1], 1)], cache)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_size": 68, "head_dim": 16}, "hidden_size 68 is no multiple of 8"),
        ({"intermediate_size": 100}, "intermediate_size 100 is no multiple of 8"),
        ({"head_dim": 24}, "head_dim 24 is no multiple of 16"),
        ({"head_dim": 272}, "head_dim 272 is over the 256"),
    ],
)
def test_shapes_that_the_kernels_cannot_run_are_refused_by_name(
    tmp_path: Path,
    save_model: Callable[..., None],
    threads: Threads,
    changes: dict[str, int],
    complaint: str,
) -> None:
    save_model(LlamaConfig(**{**SHAPE, **changes}), tmp_path)
    with pytest.raises(UnsupportedModel, match=f"{complaint}.*use float32"):
        load_quantized(tmp_path, threads=threads)


def test_models_may_share_threads_and_be_used_at_once(
    plain: QuantizedDecoder, ids: list[int]
) -> None:
    shorter = plain.truncated(1)
    expected = [in_pieces(model, ids[:30], [30]) for model in (plain, shorter)]

    def work(turn: int) -> bool:
        model = (plain, shorter)[turn % 2]
        return torch.equal(in_pieces(model, ids[:30], [7, 23]), expected[turn % 2])

    with ThreadPoolExecutor(4) as callers:
        assert all(callers.map(work, range(40)))
