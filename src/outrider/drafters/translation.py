"""Between the target's tokens and those of a draft model that has others.

A draft may know a part of the target's tokens (trimmed), or have a tokenizer of its own. Either way
it may draft those tokens alone that both have, which is exact under every rule of verification
(TLI, arXiv 2502.05202), and it reads all of the context: token by token, each spelled in tokens of
the draft that give the same bytes. That is local, so a token costs the same wherever it stands, and
what is rejected is rolled back by cutting. Encoding the whole text anew would give the draft the
tokens that it was trained on, but changes tokens that it has read already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from outrider.text import HFTokenizer

__all__ = ["Translation"]

I64 = npt.NDArray[np.int64]

_MOST_BYTES: Final = 256
"""Longer tokens are not spelled: few exist, and none is worth the time."""


class Translation:
    """Translates a target's ids to a draft's, and says what the draft's own ids mean.

    Made by `trimmed` or `between`. Safe to share between threads.

    Attributes:
        target_ids: int64, shape [V_draft], the target's id of each draft id, none of them twice; -1
            where there is none, and such an id is never drafted.
        prefix: what the draft model wants in front of a text; often nothing.
    """

    def __init__(
        self,
        target_ids: I64,
        own: I64,
        *,
        words: dict[bytes, int],
        token_bytes: Callable[[int], bytes | None],
        prefix: Sequence[int] = (),
    ) -> None:
        """Args:
        own: int64, by target id: the draft id that says it alone, or -1.
        words: draft ids that may spell other tokens, by their bytes.
        token_bytes: what a target id is to be spelled as; None if it cannot be.
        """
        self.target_ids = target_ids
        self.prefix = tuple(prefix)
        self._own = own
        self._words = words
        self._longest = min(max(map(len, words), default=0), _MOST_BYTES)
        self._token_bytes = token_bytes
        self._spelled: dict[int, tuple[int, ...]] = {}  # bounded: only ids of the target enter

    @classmethod
    def trimmed(cls, tokenizer: HFTokenizer, target_ids: Sequence[int] | I64) -> Translation:
        """For a draft that has some of the target's tokens, with the same meaning.

        Args:
            tokenizer: of the target.
            target_ids: of each draft id, ascending, not negative.
        """
        kept = np.asarray(target_ids, dtype=np.int64)
        own = np.full(max(tokenizer.vocab_size, int(kept[-1]) + 1), -1, dtype=np.int64)
        own[kept] = np.arange(kept.size)
        words = {
            data: int(own[token_id]) for data, token_id in _words(tokenizer, kept.tolist()).items()
        }
        return cls(kept, own, words=words, token_bytes=_plain_bytes(tokenizer))

    @classmethod
    def between(
        cls,
        target: HFTokenizer,
        draft: HFTokenizer,
        *,
        target_size: int | None = None,
        draft_size: int | None = None,
        target_ends: Iterable[int] = (),
        draft_ends: Iterable[int] = (),
    ) -> Translation:
        """For a draft with another tokenizer.

        Tokens mean the same if they stand for the same bytes; of several in one vocabulary, the
        lowest id does, but a token for a single byte only if there is no other. Special tokens mean
        the same if they have the same name, or both begin a text, or both end one. What else is
        special in the target is left out of the context.

        Args:
            target, draft: the tokenizers.
            target_size, draft_size: ids of rows of logits; tokens from there on do not count.
            target_ends, draft_ends: ids that end an output. Of several without a namesake, the
                highest ones mean each other: chat models add theirs to those of their base.
        """
        our_ids = range(min(target.vocab_size, target_size or target.vocab_size))
        their_ids = range(min(draft.vocab_size, draft_size or draft.vocab_size))
        ours, words = _words(target, our_ids), _words(draft, their_ids)
        own = np.full(len(our_ids), -1, dtype=np.int64)
        target_ids = np.full(len(their_ids), -1, dtype=np.int64)
        for data, draft_id in words.items():
            target_ids[draft_id] = ours.get(data, -1)
        spelling = _plain_bytes(target)
        for target_id in our_ids:
            own[target_id] = words.get(spelling(target_id) or b"", -1)

        prefix = _leading(draft)
        _join(own, target_ids, _namesakes(target, draft))
        _join(own, target_ids, zip(_leading(target), prefix, strict=False))
        _join_ends(own, target_ids, target_ends, draft_ends)
        return cls(target_ids, own, words=words, token_bytes=spelling, prefix=prefix)

    @property
    def drafted(self) -> I64:
        """Draft ids that may be drafted, in ascending order of the target's ids; int64 of [n]."""
        known = np.flatnonzero(self.target_ids >= 0)
        ordered: I64 = known[np.argsort(self.target_ids[known])]
        return ordered

    def pieces(self, target_id: int) -> tuple[int, ...]:
        """The draft ids that say what this token of the target says; () if none can.

        As few as possible, longer ones first among equals. O(1) from the second call on.
        """
        if not 0 <= target_id < self._own.size:
            return ()
        own = int(self._own[target_id])
        if own >= 0:
            return (own,)
        spelled = self._spelled.get(target_id)
        if spelled is None:
            spelled = self._spelled[target_id] = self._spell(self._token_bytes(target_id) or b"")
        return spelled

    def draft_ids(self, token_ids: Iterable[int]) -> list[int]:
        """The pieces of all these tokens, one after the other: those of a long prompt at once."""
        ids = np.fromiter(token_ids, dtype=np.int64)
        there = (ids >= 0) & (ids < self._own.size)
        own = np.where(there, self._own[np.where(there, ids, 0)], -1)
        single: list[int] = own.tolist()
        pieces: list[int] = []
        start = 0
        for place in np.flatnonzero(own < 0).tolist():
            pieces += single[start:place]
            pieces += self.pieces(int(ids[place]))
            start = place + 1
        return pieces + single[start:]

    def align(self, token_ids: Iterable[int]) -> tuple[list[int], list[int]]:
        """The pieces of all these tokens, and how many there are up to the end of each token."""
        pieces: list[int] = []
        ends: list[int] = []
        for token_id in token_ids:
            pieces.extend(self.pieces(token_id))
            ends.append(len(pieces))
        return pieces, ends

    def context(self, token_ids: Iterable[int]) -> list[int]:
        """What the draft model reads of a text's beginning: its pieces behind `prefix`."""
        pieces = self.draft_ids(token_ids)
        size = len(self.prefix)
        return pieces if tuple(pieces[:size]) == self.prefix else [*self.prefix, *pieces]

    def _spell(self, data: bytes) -> tuple[int, ...]:
        size = len(data)
        if size > _MOST_BYTES:
            return ()
        # From each place on: how many tokens it takes to the end, and where the first one ends.
        counts = [size + 1] * size + [0]
        ends = [0] * size
        for start in reversed(range(size)):
            for end in range(min(start + self._longest, size), start, -1):
                if counts[end] + 1 < counts[start] and data[start:end] in self._words:
                    counts[start], ends[start] = counts[end] + 1, end
        if counts[0] > size:
            return ()
        pieces = []
        start = 0
        while start < size:
            pieces.append(self._words[data[start : ends[start]]])
            start = ends[start]
        return tuple(pieces)


def _plain_bytes(tokenizer: HFTokenizer) -> Callable[[int], bytes | None]:
    """The bytes of a token that is a part of the text, by its id; None for all others."""
    special = tokenizer.special_ids
    return lambda token_id: None if token_id in special else tokenizer.token_bytes(token_id)


def _words(tokenizer: HFTokenizer, token_ids: Iterable[int]) -> dict[bytes, int]:
    """Which of these tokens to say bytes with."""
    bytes_of = _plain_bytes(tokenizer)
    words: dict[bytes, int] = {}
    fallback: dict[bytes, int] = {}
    for token_id in token_ids:
        data = bytes_of(token_id)
        if not data:
            continue
        # Models say "A" and not <0x41>, which has the lower id.
        spelled_out = len(tokenizer.token_strings[token_id] or "") > len(data)
        (fallback if spelled_out else words).setdefault(data, token_id)
    return fallback | words


def _namesakes(target: HFTokenizer, draft: HFTokenizer) -> Iterator[tuple[int, int]]:
    """Tokens with the same name that are special in one of the two, at least."""
    theirs = {string: token_id for token_id, string in enumerate(draft.token_strings) if string}
    for target_id, string in enumerate(target.token_strings):
        draft_id = theirs.get(string or "")
        if draft_id is not None and (
            target_id in target.special_ids or draft_id in draft.special_ids
        ):
            yield target_id, draft_id


def _join(own: I64, target_ids: I64, pairs: Iterable[tuple[int, int]]) -> None:
    """Let a token of the target and one of the draft mean each other, if neither has a meaning."""
    for target_id, draft_id in pairs:
        there = target_id < own.size and draft_id < target_ids.size
        if there and own[target_id] < 0 and target_ids[draft_id] < 0:
            own[target_id], target_ids[draft_id] = draft_id, target_id


def _join_ends(own: I64, target_ids: I64, ours: Iterable[int], theirs: Iterable[int]) -> None:
    """Let the tokens mean each other that end an output."""
    known = [end for end in theirs if end < target_ids.size]
    if not known:
        return
    best = min(known, key=lambda end: (target_ids[end] >= 0, -end))
    for end in sorted(ours, reverse=True):
        _join(own, target_ids, [(end, best)])
        if end < own.size and own[end] < 0:
            own[end] = best  # to be read, not drafted


def _leading(tokenizer: HFTokenizer) -> list[int]:
    """What a tokenizer puts in front of a plain text."""
    bare = tokenizer.encode("a", add_special_tokens=False)
    whole = tokenizer.encode("a", add_special_tokens=True)
    return whole[: whole.index(bare[0])] if bare and bare[0] in whole else []
