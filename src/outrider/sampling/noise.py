"""Counter-based randomness: noise as a pure function of (noise key, choice, position, token id).

Target and draft draw the same noise for the same place, so a sampled draft agrees with the target
often, and the output depends on the noise key and the target's distribution alone: never on the
drafter, the lookahead, the batch or a retry.

Only integers are hashed, so uniforms are the same bits on every platform. The hash is SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): one stream
per (key, choice, position), with the token id as the counter. Token ids are the *target's*:
trimmed and foreign vocabularies renumber.
"""

import secrets

import numpy as np
import numpy.typing as npt

__all__ = ["gumbel", "noise_key", "uniforms"]

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]


def noise_key(seed: int | None) -> int:
    """The 64-bit noise key of a request: fixed by `seed`, otherwise unpredictable."""
    if seed is None:
        return secrets.randbits(64)
    return _mix_int((seed & _MASK) ^ 0x6F75747269646572)


def uniforms(key: int, choice: int, position: int, token_ids: npt.NDArray[np.int64]) -> F64:
    """Uniforms strictly inside (0, 1) with 53 random bits, one for each of `token_ids`.

    Args:
        key: the request's noise key, 64 bits.
        choice: index of the copy among the `n` of one request.
        position: absolute position of the sampled token, prompt included.
        token_ids: int64, shape [m], ids in the target's vocabulary.
    """
    stream = _stream(key, choice, position)
    with np.errstate(over="ignore"):
        counter = token_ids.astype(np.uint64) + np.uint64(1)
        hashed = _mix(np.uint64(stream) + counter * np.uint64(_GAMMA))
    # The half keeps the value off 0, where the logarithm is infinite; 1 - 2**-54 rounds below 1.
    return ((hashed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def gumbel(key: int, choice: int, position: int, token_ids: npt.NDArray[np.int64]) -> F64:
    """Standard Gumbel noise, float64 of shape [m]; arguments as for `uniforms`.

    argmax(log p + noise) is a sample of p (the Gumbel-max trick).
    """
    return -np.log(-np.log(uniforms(key, choice, position, token_ids)))


def _stream(key: int, choice: int, position: int) -> int:
    """Start of the SplitMix64 stream for one place, each coordinate mixed in before the next."""
    state = _mix_int(key + _GAMMA)
    state = _mix_int(state ^ _mix_int(choice + 1))
    return _mix_int(state + position * _GAMMA)


def _mix_int(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix(value: U64) -> U64:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
