"""What a draft model reads of a session, in ids of its own, kept in step with the history."""

from __future__ import annotations

from typing import Protocol

from outrider.drafters.translation import Translation
from outrider.sampling import History

__all__ = ["Context", "PlainContext", "TranslatedContext"]


class Context(Protocol):
    """A history as the draft model reads it."""

    @property
    def ids(self) -> list[int]:
        """What stands in the model's context; for reading only."""
        ...

    def keep(self, length: int) -> int:
        """Forget what says any but the first `length` tokens of the history, of which the prompt is
        part. Returns how many ids have stayed as they were."""
        ...

    def extend(self) -> None:
        """Take over what the history has more."""
        ...


class PlainContext:
    """Of a model that has the target's ids: the history itself."""

    def __init__(self, history: History) -> None:
        self.ids = history.tokens

    def keep(self, length: int) -> int:
        return length

    def extend(self) -> None:
        """Nothing to do: the tokens are there."""


class TranslatedContext:
    """Of a model with other ids. A token may be several of them, or none."""

    def __init__(self, history: History, translation: Translation) -> None:
        self._history = history
        self._translation = translation
        self.ids = translation.context(history.tokens)
        self._ends = [len(self.ids)]  # of the prompt, and of each output token

    def keep(self, length: int) -> int:
        del self._ends[length - self._history.prompt_length + 1 :]
        del self.ids[self._ends[-1] :]
        return len(self.ids)

    def extend(self) -> None:
        known = self._history.prompt_length + len(self._ends) - 1
        for token_id in self._history.tokens[known:]:
            self.ids.extend(self._translation.pieces(token_id))
            self._ends.append(len(self.ids))
