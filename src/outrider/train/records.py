"""The nouns of training data: where answers come from, and what one of them holds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Entry", "Example", "Part", "Sampling", "Source"]

_SCHEMA_VERSION: Final = 1


class Part(StrEnum):
    """Which examples of a folder: no example is of both parts."""

    TRAIN = "train"
    HELD_OUT = "held_out"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target's answers were drawn; names and values as in `types.SamplingParams`.

    Attributes:
        temperatures: every prompt was answered once at each.
        seed: each answer's own seed is derived from it.
        max_tokens: budget of one answer.
    """

    temperatures: tuple[float, ...] = (0.0,)
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int = 256


@dataclass(frozen=True, slots=True)
class Source:
    """Where the answers of a folder come from; the same in all of its shards.

    Attributes:
        model_id: the target that answered.
        model_hash: identifies its weights as served, quantization included.
        dtype: what they were held in; None if that means nothing.
        vocab_fingerprint: as in `types.TargetInfo`.
        vocab_size: length of the target's rows of logits.
        eos_token_ids: ids that ended an answer, ascending.
        temperatures: those at which `Example.logsumexps` holds normalisers.
        k: entries of each stored row.
        sampling: how the answers were drawn.
        holdout: the share of prompts that is held out of training.
        prompts: sha256 over the prompts asked, in order.
        shard_size: answers to a shard, those that were skipped counted.
    """

    model_id: str
    model_hash: str
    vocab_fingerprint: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str | None = None
    temperatures: tuple[float, ...] = (1.0,)
    k: int = 64
    sampling: Sampling = Sampling()
    holdout: float = 0.0
    prompts: str = ""
    shard_size: int = 32

    def to_json(self) -> str:
        return json.dumps({"version": _SCHEMA_VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Source:
        """Raises ValueError, TypeError or KeyError where `text` is not of `to_json`'s form."""
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise TypeError(f"an object is wanted, not {type(fields).__name__}")
        if (version := fields.pop("version")) != _SCHEMA_VERSION:
            raise ValueError(f"version {version} is not {_SCHEMA_VERSION}")
        sampling = dict(fields.pop("sampling"))
        sampling["temperatures"] = tuple(sampling["temperatures"])
        for name in ("eos_token_ids", "temperatures"):
            fields[name] = tuple(fields[name])
        return cls(**fields, sampling=Sampling(**sampling))


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One conversation: n tokens, g of which the target made.

    Row j of `support_ids`, `support_logits` and `logsumexps` is the target's row that the j-th
    generated token was drawn from: its logits at the position before that token.

    Attributes:
        id: the prompt's own id and the temperature of the answer.
        category: what kind of prompt it was.
        token_ids: int32 [n], of the whole conversation.
        generated: bool [n], True where the target made the token. Never True at position 0.
        support_ids: int32 [g, k], the target's likeliest ids, descending by logit.
        support_logits: float32 [g, k], their raw logits, before any temperature.
        logsumexps: float32 [g, T], logsumexp(raw logits / t) over the whole vocabulary, for each t
            of `Source.temperatures`.
        temperature: the one that the answers were drawn at.
        held_out: not to be trained on.
        finish_reasons: why each answer of the conversation ended.
    """

    id: str
    category: str
    token_ids: npt.NDArray[np.int32]
    generated: npt.NDArray[np.bool_]
    support_ids: npt.NDArray[np.int32]
    support_logits: npt.NDArray[np.float32]
    logsumexps: npt.NDArray[np.float32]
    temperature: float = 0.0
    held_out: bool = False
    finish_reasons: tuple[str, ...] = ()

    @property
    def generated_ids(self) -> npt.NDArray[np.int32]:
        """int32 [g], the tokens that the target made."""
        return self.token_ids[self.generated]


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of an example before its tokens are read; see `Example`."""

    category: str
    temperature: float
    held_out: bool
    finish_reasons: tuple[str, ...]
    num_tokens: int
    num_generated: int
