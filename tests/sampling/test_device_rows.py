"""What torch does to a row equals what numpy does, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.sampling.device_rows import (
    DeviceEdit,
    bring,
    contenders,
    device_uniforms,
    largest,
    near_nucleus,
)
from outrider.sampling.noise import gumbel, uniforms
from outrider.sampling.processors import Change, Edit
from outrider.sampling.select import block_maxima, nucleus, top_k

V = 50_000
IDS = np.arange(V)


@given(
    key=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 2**16),
    position=st.integers(0, 2**31),
)
def test_uniforms_are_the_same_bits(key: int, choice: int, position: int) -> None:
    found = device_uniforms(key, choice, position, torch.from_numpy(IDS))
    assert found.dtype == torch.float64
    assert found.numpy().tobytes() == uniforms(key, choice, position, IDS).tobytes()


def test_uniforms_of_chosen_ids_are_those_of_the_whole_vocabulary() -> None:
    ids = np.array([0, 7, V - 1, 3])
    whole = device_uniforms(5, 0, 9, torch.from_numpy(IDS))
    assert torch.equal(device_uniforms(5, 0, 9, torch.from_numpy(ids)), whole[ids])


@given(
    values=st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 1.0, 2.0]), min_size=1, max_size=20),
    k=st.integers(0, 25),
)
def test_the_largest_are_chosen_like_numpys_and_the_lowest_of_equals(
    values: list[float], k: int
) -> None:
    row = np.array(values, dtype=np.float32)
    expected = top_k(row, k, block_maxima(row)) if k else []
    assert largest(torch.from_numpy(row), k).tolist() == list(expected)


@pytest.mark.parametrize("top_p", [1e-9, 0.5, 0.95, 1 - 1e-12])
@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0])
def test_what_is_near_the_nucleus_contains_it_and_little_more(top_p: float, spread: float) -> None:
    weights = np.exp(spread * np.random.default_rng(2).standard_normal(V))
    kept = near_nucleus(torch.from_numpy(weights), top_p).numpy()
    inside = nucleus(weights, float(weights.sum()), top_p)
    assert kept[inside].all()
    assert weights[~kept].sum() <= 0.5 * (1 - top_p) * weights.sum() * (1 + 1e-9)
    assert kept.sum() == V or weights[kept].min() > weights[~kept].max()


def test_little_of_a_peaked_row_is_near_its_nucleus() -> None:
    weights = np.exp(2.5 * np.random.default_rng(3).standard_normal(V))
    weights[:20] *= 1e6
    assert near_nucleus(torch.from_numpy(weights), 0.95).sum() < 1000


EDITS = {
    "exclude ids": Edit(Change.EXCLUDE, np.array([3, 5])),
    "exclude by mask": Edit(Change.EXCLUDE, np.arange(V) % 3 == 0),
    "keep": Edit(Change.KEEP, np.array([1, 40_000])),
    "add": Edit(Change.ADD, np.arange(0, V, 3), np.linspace(-9, 9, -(-V // 3))),
    "scale": Edit(Change.SCALE, np.arange(0, V, 2), np.array([1.3])),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_row_is_the_same_bits(name: str) -> None:
    row = np.random.default_rng(0).standard_normal(V).astype(np.float32)
    row[:1000:7] = -np.inf
    expected, found = row.copy(), torch.from_numpy(row.copy())
    EDITS[name].apply(expected)
    DeviceEdit(EDITS[name], found.device).apply(found)
    assert found.numpy().tobytes() == expected.tobytes()
    assert expected.tobytes() != row.tobytes()


@pytest.mark.parametrize("temperature", [5e-324, 0.1, 1.0, 50.0])
def test_the_winner_of_the_race_is_among_few_contenders(temperature: float) -> None:
    row = np.random.default_rng(1).standard_normal(V).astype(np.float32)
    with np.errstate(over="ignore"):
        log_weights = (row.astype(np.float64) - row.max()) / temperature
    for position in range(20):
        place = (3, 1, position)
        winner = int(np.argmax(log_weights + gumbel(*place, IDS)))
        ids = contenders(torch.from_numpy(row), temperature, place).tolist()
        assert winner in ids
        assert len(ids) <= 3


def test_what_is_brought_to_the_host_is_exact() -> None:
    row = torch.tensor([1 / 3, -torch.inf, 3e38, 1e-45])
    ids, logits, numbers = bring(
        row, torch.tensor([0, 1, 3]), torch.tensor(0.1, dtype=torch.float64)
    )
    assert (ids.dtype, logits.dtype) == (np.int64, np.float32)
    assert ids.tolist() == [0, 1, 3]
    assert logits.tolist() == row[[0, 1, 3]].tolist()
    assert numbers == [0.1]
