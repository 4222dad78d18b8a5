"""Counter-based randomness: noise as a pure function of (noise key, choice, position, token id).

Target and draft draw the same noise for the same place, so a sampled draft agrees with the target
often, and the output depends on the noise key and the target's distribution alone: never on the
drafter, the lookahead, the batch or a retry.

Only integers are hashed, so uniforms are the same bits on every platform. The hash is SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): one stream
per (key, choice, position), with the token id as the counter. Token ids are the *target's*:
trimmed and foreign vocabularies renumber.
"""

from __future__ import annotations

import functools
import secrets

import numpy as np
import numpy.typing as npt

__all__ = [
    "GAMMA",
    "LARGEST_UNIFORM",
    "MIX_1",
    "MIX_2",
    "counters",
    "counters_of",
    "gumbel",
    "hash_into",
    "leading_bits_into",
    "noise_key",
    "stream",
    "to_gumbel",
    "uniforms",
]

GAMMA = 0x9E3779B97F4A7C15
"""The step from one counter to the next."""

MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
"""Factors of the hash."""

LARGEST_UNIFORM = 1.0 - 2.0**-53

_MASK = (1 << 64) - 1

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


def noise_key(seed: int | None) -> int:
    """The 64-bit noise key of a request: fixed by `seed`, otherwise unpredictable."""
    if seed is None:
        return secrets.randbits(64)
    return _mix((seed & _MASK) ^ 0x6F75747269646572)


def uniforms(key: int, choice: int, position: int, token_ids: I64) -> F64:
    """Uniforms strictly inside (0, 1) with 53 random bits, one for each of `token_ids`.

    Args:
        key: the request's noise key, 64 bits.
        choice: index of the copy among the `n` of one request.
        position: absolute position of the sampled token, prompt included.
        token_ids: int64, shape [m], ids in the target's vocabulary.
    """
    hashed = counters_of(token_ids)
    hash_into(hashed, hashed, stream(key, choice, position), np.empty_like(hashed))
    # The half keeps the value off 0, and the limit off 1, to which the largest would round.
    uniform = ((hashed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.minimum(uniform, LARGEST_UNIFORM)


def gumbel(key: int, choice: int, position: int, token_ids: I64) -> F64:
    """Standard Gumbel noise, float64 of shape [m]; arguments as for `uniforms`.

    argmax(log p + noise) is a sample of p (the Gumbel-max trick).
    """
    return to_gumbel(uniforms(key, choice, position, token_ids))


def to_gumbel(uniform: F64) -> F64:
    """Standard Gumbel noise from uniforms inside (0, 1): the one place that computes it."""
    noise: F64 = -np.log(-np.log(uniform))
    return noise


def stream(key: int, choice: int, position: int) -> int:
    """Start of the SplitMix64 stream for one place, each coordinate mixed in before the next."""
    state = _mix(key + GAMMA)
    state = _mix(state ^ _mix(choice + 1))
    return _mix(state + position * GAMMA)


def counters_of(token_ids: I64) -> U64:
    """What is added to a stream's start for these ids, shape [m]."""
    return (token_ids.astype(np.uint64) + np.uint64(1)) * np.uint64(GAMMA)


@functools.lru_cache(maxsize=8)
def counters(vocab_size: int) -> U64:
    """The same for every id of a vocabulary; read only, shape [V]."""
    steps = counters_of(np.arange(vocab_size))
    steps.flags.writeable = False
    return steps


def hash_into(hashed: U64, counted: U64, start: int, scratch: U64) -> None:
    """Hash the counters of some ids.

    Args:
        hashed: shape [m], overwritten with the hashes; may be `counted` itself.
        counted: shape [m], see `counters`.
        start: of the stream.
        scratch: shape [m], overwritten.
    """
    leading_bits_into(hashed, counted, start, scratch)
    np.right_shift(hashed, np.uint64(31), out=scratch)
    hashed ^= scratch


def leading_bits_into(hashed: U64, counted: U64, start: int, scratch: U64) -> None:
    """The same but for the last turn of the hash, which leaves the highest 31 bits as they are."""
    np.add(counted, np.uint64(start), out=hashed)
    for shift, factor in ((30, MIX_1), (27, MIX_2)):
        np.right_shift(hashed, np.uint64(shift), out=scratch)
        hashed ^= scratch
        hashed *= np.uint64(factor)


def _mix(value: int) -> int:
    """SplitMix64's finaliser on one integer."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * MIX_2) & _MASK
    return value ^ (value >> 31)
