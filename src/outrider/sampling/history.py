"""The tokens of a sequence, and what processors need to know of them at every position.

Penalties, bad words, `min_tokens` and grammars depend on what came before a token, so each drafted
row is judged with the tokens in front of it counted in, and what is rejected is counted out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Counts", "History", "TokenMask"]

I64 = npt.NDArray[np.int64]


class TokenMask(Protocol):
    """Which tokens may come next, as a grammar says: the hook for structured output.

    It follows the output token by token, and back. A token that it forbids may be accepted too
    (a draft holds it, and will be rejected there): what `allowed` says behind it is never used, but
    `rollback` must undo it.
    """

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Shape [V]: True where the token may come next."""
        ...

    def accept(self, token_id: int) -> None:
        """Go on behind this token."""
        ...

    def rollback(self, count: int) -> None:
        """Undo the last `count` tokens."""
        ...


class Counts:
    """How often each distinct token occurs, in arrays that a row can be indexed with.

    Costs O(1) for each token that comes or goes.
    """

    def __init__(self, prompt_ids: Iterable[int], output_ids: Iterable[int]) -> None:
        prompt = np.unique(np.fromiter(prompt_ids, dtype=np.int64))
        self._places = {token_id: place for place, token_id in enumerate(prompt.tolist())}
        self._ids = prompt
        self._in_prompt = np.ones(prompt.size, dtype=np.bool_)
        self._in_output = np.zeros(prompt.size, dtype=np.int64)
        for token_id in output_ids:
            self.add(token_id, 1)

    def add(self, token_id: int, times: int) -> None:
        """Count an output token in (1) or out (-1)."""
        place = self._places.setdefault(token_id, len(self._places))
        if place == self._ids.size:
            self._grow()
        self._ids[place] = token_id
        self._in_output[place] += times

    def seen(self) -> I64:
        """Ids that occur in prompt or output."""
        return self._ids[self._in_prompt | (self._in_output > 0)]

    def output(self) -> tuple[I64, I64]:
        """Ids that occur in the output, and how often."""
        present = self._in_output > 0
        return self._ids[present], self._in_output[present]

    def _grow(self) -> None:
        more = max(self._ids.size, 64)
        self._ids = np.concatenate([self._ids, np.zeros(more, dtype=np.int64)])
        self._in_prompt = np.concatenate([self._in_prompt, np.zeros(more, dtype=np.bool_)])
        self._in_output = np.concatenate([self._in_output, np.zeros(more, dtype=np.int64)])


class History:
    """The tokens of one sequence. Extend it and truncate it; what is counted follows.

    Args:
        prompt_ids: not part of the output.
        output_ids: output so far.
        mask: a grammar at the start of the output, or None.

    Attributes:
        tokens: prompt and output. Change it through `extend` and `truncate` only.
        prompt_length: tokens of it that are the prompt.
        mask: the grammar, kept in step.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int] = (),
        *,
        mask: TokenMask | None = None,
    ) -> None:
        self.tokens: list[int] = list(prompt_ids)
        self.prompt_length = len(self.tokens)
        self.mask = mask
        self._counts: Counts | None = None
        self.extend(output_ids)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self.prompt_length

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append output tokens."""
        for token_id in token_ids:
            self.tokens.append(token_id)
            if self._counts is not None:
                self._counts.add(token_id, 1)
            if self.mask is not None:
                self.mask.accept(token_id)

    def truncate(self, length: int) -> None:
        """Drop output tokens until `length` tokens are left, prompt included."""
        if not self.prompt_length <= length <= len(self.tokens):
            raise ValueError(
                f"cannot cut {len(self.tokens)} tokens, {self.prompt_length} of them prompt, "
                f"to {length}"
            )
        dropped = self.tokens[length:]
        del self.tokens[length:]
        if self._counts is not None:
            for token_id in dropped:
                self._counts.add(token_id, -1)
        if self.mask is not None and dropped:
            self.mask.rollback(len(dropped))

    def counts(self) -> Counts:
        """Occurrences by token; counted from the first call on."""
        if self._counts is None:
            self._counts = Counts(
                self.tokens[: self.prompt_length], self.tokens[self.prompt_length :]
            )
        return self._counts

    def output_ends_with(self, token_ids: Sequence[int]) -> bool:
        """Whether the output ends with this sequence."""
        size = len(token_ids)
        return size <= self.output_length and tuple(
            self.tokens[len(self.tokens) - size :]
        ) == tuple(token_ids)
