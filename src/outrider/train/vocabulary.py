"""Which of the target's tokens a draft keeps: the output head is most of what a small draft costs.

A token that is left out is never drafted, and read as the bytes that it stands for. So leaving one
out costs the drafts that end there, and never the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.errors import TrainingError
from outrider.models import TextAssets
from outrider.text import HFTokenizer
from outrider.train.rows import example_rows
from outrider.train.store import Examples

__all__ = ["Coverage", "choose_vocabulary", "measure_coverage"]

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a vocabulary has of a target's answers.

    Attributes:
        size: tokens kept.
        tokens: share of the tokens that the target made.
        mass: share of its probability at temperature 1. What it gave to tokens outside of the
            stored rows is taken as not covered, so this is a lower bound.
        generated: how many tokens the target made.
    """

    size: int
    tokens: float
    mass: float
    generated: int


def choose_vocabulary(
    folders: Sequence[Examples], tokenizer: HFTokenizer, keep: int, *, assets: TextAssets
) -> I64:
    """The `keep` tokens of most use to a draft, int64 [keep], ascending.

    Always among them: a token for each byte that the tokenizer has one for, so that everything can
    be read; the ids that end an output; special tokens that the chat template names or that stand
    in the data. The others are those that the target said most often and holds most likely, in
    equal parts. Where the data has fewer, the lowest ids fill up: merges are numbered by frequency.

    Args:
        folders: answers of the target; those to be trained on, not those to be judged by.
        tokenizer, assets: the target's.
        keep: if the tokenizer has no more tokens, all of them are kept.

    Raises:
        TrainingError: `keep` is less than the tokens that are always kept, or there are no answers.
        CorruptData: a shard cannot be read.
    """
    size = tokenizer.vocab_size
    counts, mass, seen = _count(folders, size)
    if not counts.any():
        raise TrainingError("the data holds no tokens of the target's; make more prompts' answers")
    strings = tokenizer.token_strings
    there = np.fromiter((string is not None for string in strings), dtype=bool, count=size)
    special = np.zeros(size, dtype=bool)
    special[[each for each in tokenizer.special_ids if each < size]] = True

    always = np.zeros(size, dtype=bool)
    always[_bytes(tokenizer)] = True
    always[[each for each in _ends(folders, assets) if each < size]] = True
    always[_named(tokenizer, assets)] = True
    always |= special & seen
    always &= there
    needed = int(always.sum())
    if keep < needed:
        raise TrainingError(
            f"a vocabulary of {keep} has no room for the {needed} tokens that every draft for this "
            "target needs: bytes, ends and special tokens; keep more"
        )
    # Special tokens that were never seen stay out even where there is room.
    candidates = np.flatnonzero(there & ~always & (~special | (counts > 0)))
    score = counts + mass
    # Stable, so that equals stand by id.
    ranked = candidates[np.argsort(-score[candidates], kind="stable")]
    kept = np.concatenate((np.flatnonzero(always), ranked[: keep - needed]))
    return np.sort(kept).astype(np.int64)


def measure_coverage(folders: Sequence[Examples], target_ids: I64) -> Coverage:
    """What `target_ids` have of the answers in `folders`.

    Raises:
        TrainingError: there are no answers.
        CorruptData: a shard cannot be read.
    """
    size = max([int(target_ids[-1]) + 1, *(each.source.vocab_size for each in folders)])
    counts, mass, _ = _count(folders, size)
    generated = int(counts.sum())
    if not generated:
        raise TrainingError("there are no answers to measure a vocabulary's coverage on")
    return Coverage(
        size=target_ids.size,
        tokens=float(counts[target_ids].sum() / generated),
        mass=float(mass[target_ids].sum() / generated),
        generated=generated,
    )


def _count(folders: Sequence[Examples], size: int) -> tuple[F64, F64, npt.NDArray[np.bool_]]:
    """By id: tokens that the target made, its probabilities summed, and whether it occurs at all.

    Ids from `size` on, which have no meaning, are left out.
    """
    length = max([size, *(each.source.vocab_size for each in folders)])
    counts, mass = np.zeros(length), np.zeros(length)
    seen = np.zeros(length, dtype=bool)
    for examples in folders:
        for example in examples:
            counts += np.bincount(example.generated_ids, minlength=length)
            seen[example.token_ids] = True
            rows = example_rows(example, examples.source, 1.0)
            ids = rows.support_ids.numpy().ravel()
            mass += np.bincount(ids, rows.log_probs.exp().numpy().ravel(), minlength=length)
    return counts[:size], mass[:size], seen[:size]


def _bytes(tokenizer: HFTokenizer) -> list[int]:
    """One token for each byte; of several the one that text is usually made of."""
    plain: dict[bytes, int] = {}
    fallback: dict[bytes, int] = {}
    for token_id, string in enumerate(tokenizer.token_strings):
        data = None if token_id in tokenizer.special_ids else tokenizer.token_bytes(token_id)
        if data is not None and len(data) == 1:
            # <0x41> is how a tokenizer says a byte for which it has no word.
            (plain if len(string or "") == 1 else fallback).setdefault(data, token_id)
    return list((fallback | plain).values())


def _ends(folders: Sequence[Examples], assets: TextAssets) -> set[int]:
    return set(assets.eos_token_ids).union(*(each.source.eos_token_ids for each in folders))


def _named(tokenizer: HFTokenizer, assets: TextAssets) -> list[int]:
    """Special tokens that the chat template writes, or that begin a text."""
    template = assets.chat_template or ""
    strings = {string for name, string in assets.special_tokens.items() if name in template}
    named = [
        token_id
        for token_id in _within(tokenizer.special_ids, tokenizer.vocab_size)
        if (string := tokenizer.token_strings[token_id])
        and (string in strings or string in template)
    ]
    return named if assets.bos_token_id is None else [*named, assets.bos_token_id]


def _within(token_ids: Iterable[int], size: int) -> list[int]:
    return sorted(each for each in token_ids if each < size)
