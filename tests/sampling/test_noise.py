from __future__ import annotations

import numpy as np
import pytest

from outrider.sampling import gumbel, noise_key, uniforms
from outrider.sampling.noise import GAMMA, MIX_1, MIX_2, _mix, stream

IDS = np.arange(50_000, dtype=np.int64)


def reference_uniform(key: int, choice: int, position: int, token_id: int) -> float:
    """The definition, in Python's integers."""
    gamma, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    state = _mix((_mix(key + gamma) ^ _mix(choice + 1)) & mask)
    state = _mix(state + position * gamma)
    hashed = _mix((state + (token_id + 1) * gamma) & mask)
    return ((hashed >> 11) + 0.5) / 2**53


def test_uniforms_equal_their_definition_bit_for_bit() -> None:
    for key, choice, position in [(0, 0, 0), (2**64 - 1, 3, 8191), (12345, 1, 7)]:
        found = uniforms(key, choice, position, IDS[:200])
        assert found.tolist() == [reference_uniform(key, choice, position, i) for i in range(200)]


def test_uniforms_are_these_bits_on_every_platform() -> None:
    found = uniforms(noise_key(42), 0, 17, np.array([0, 1, 49151]))
    assert [value.hex() for value in found.tolist()] == [
        "0x1.9f5fd7b84dbadp-2",
        "0x1.374d79e1e1a70p-1",
        "0x1.dd9fedc2bd212p-3",
    ]


def test_uniforms_lie_strictly_inside_the_unit_interval() -> None:
    found = uniforms(1, 0, 0, np.arange(1_000_000))
    assert found.min() > 0.0
    assert found.max() < 1.0


def test_uniforms_do_not_depend_on_which_other_tokens_are_asked_for() -> None:
    whole = uniforms(9, 0, 3, IDS)
    part = uniforms(9, 0, 3, np.array([17, 40_000]))
    assert part.tolist() == [whole[17], whole[40_000]]


def test_uniforms_are_uniform() -> None:
    found = uniforms(3, 0, 5, IDS)
    counts, _ = np.histogram(found, bins=50, range=(0, 1))
    expected = IDS.size / 50
    # chi-square with 49 degrees of freedom: 99.99% lie below 96
    assert ((counts - expected) ** 2 / expected).sum() < 96


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ((1, 0, 5), (2, 0, 5)),
        ((1, 0, 5), (1, 1, 5)),
        ((1, 0, 5), (1, 0, 6)),
        ((5, 1, 2), (5, 2, 1)),
    ],
    ids=["keys", "choices", "positions", "choice and position swapped"],
)
def test_noise_of_different_places_is_uncorrelated(one, two) -> None:
    correlation = np.corrcoef(uniforms(*one, IDS), uniforms(*two, IDS))[0, 1]
    assert abs(correlation) < 4 / np.sqrt(IDS.size)


def test_noise_of_neighbouring_places_is_no_shifted_copy() -> None:
    one = uniforms(1, 0, 5, IDS)
    for position in range(6, 30):
        assert np.intersect1d(one, uniforms(1, 0, position, IDS)).size == 0


def test_gumbel_noise_has_the_mean_and_variance_of_a_gumbel_distribution() -> None:
    found = gumbel(8, 0, 0, np.arange(200_000))
    assert found.mean() == pytest.approx(np.euler_gamma, abs=0.015)
    assert found.var() == pytest.approx(np.pi**2 / 6, abs=0.04)


def test_a_seed_fixes_the_noise_key() -> None:
    assert noise_key(7) == noise_key(7)
    assert noise_key(7) != noise_key(8)
    assert noise_key(-1) == noise_key(2**64 - 1)  # as 64-bit integers they are the same


def test_without_a_seed_noise_keys_differ() -> None:
    assert len({noise_key(None) for _ in range(100)}) == 100


def test_no_hash_gives_a_uniform_of_1() -> None:
    """An id is worked back from the largest hash; its noise must be finite."""
    state = 2**64 - 1
    for shift, factor in ((31, MIX_2), (27, MIX_1), (30, 1)):
        undone = state
        for _ in range(3):
            undone = state ^ (undone >> shift)
        state = undone * pow(factor, -1, 2**64) % 2**64
    counter = (state - stream(1, 2, 3)) * pow(GAMMA, -1, 2**64) - 1
    token_id = np.array([counter % 2**64], dtype=np.uint64).astype(np.int64)
    assert uniforms(1, 2, 3, token_id)[0] == 1 - 2.0**-53
    assert np.isfinite(gumbel(1, 2, 3, token_id)[0])
