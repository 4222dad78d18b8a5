"""From the model's logits to those that are sampled: masks, bias, penalties, at one position.

The order is that of vLLM: grammar, allowed tokens and bad words; logit bias and `min_tokens`;
repetition, frequency and presence penalties. Temperature, min-p, top-k and top-p follow (`warp`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from outrider.errors import RequestError
from outrider.sampling.history import History
from outrider.types import SamplingParams, TokenIds

__all__ = ["Change", "Edit", "Processors"]

Row = TypeVar("Row", bound=np.floating)


class Change(Enum):
    """What an edit does to the logits of its tokens, computed in float64."""

    EXCLUDE = auto()  # -inf
    KEEP = auto()  # nothing; it is all others that become -inf
    ADD = auto()  # plus the amount
    SCALE = auto()  # over the amount where positive, times the amount elsewhere


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """One change of a row, in terms that hold for rows of any library.

    Attributes:
        change: what is done.
        where: of which tokens: int64 ids of shape [m], or bool of shape [V].
        amounts: float64 of shape [m] or [1].
    """

    change: Change
    where: npt.NDArray[np.int64] | npt.NDArray[np.bool_]
    amounts: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    def apply(self, row: npt.NDArray[np.floating]) -> None:
        """Change the row in place."""
        if self.change is Change.EXCLUDE:
            row[self.where] = -np.inf
            return
        found = row[self.where]
        if self.change is Change.KEEP:
            row.fill(-np.inf)
            row[self.where] = found
        elif self.change is Change.ADD:
            row[self.where] = found + self.amounts
        else:
            row[self.where] = np.where(found > 0, found / self.amounts, found * self.amounts)


class Processors:
    """What one request's parameters do to a row of logits.

    Args:
        params: validated parameters.
        end_token_ids: ids that end the output, which `min_tokens` holds back.

    Attributes:
        fixed: edits of every row, ahead of those that depend on the history.
    """

    def __init__(self, params: SamplingParams, end_token_ids: frozenset[int] = frozenset()) -> None:
        self._params = params
        # By the token in front of the last, so that few are looked at behind any other.
        self._bad_sequences: dict[int, list[TokenIds]] = {}
        for word in params.bad_words:
            if len(word) > 1:
                self._bad_sequences.setdefault(word[-2], []).append(word)
        self._ends = Edit(Change.EXCLUDE, np.sort(_ids(end_token_ids)))
        self._penalties = (
            params.repetition_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )
        self.fixed = tuple(self._fixed())

    def active(self, history: History) -> bool:
        """Whether anything is done to a row behind `history`."""
        return (
            bool(self.fixed)
            or bool(self._bad_sequences)
            or self._penalties
            or self._holds_back(history)
            or history.mask is not None
        )

    def apply(self, logits: npt.NDArray[Row], history: History) -> npt.NDArray[Row]:
        """The processed row behind `history`; the given one itself if there is nothing to do.

        Args:
            logits: shape [V]; never changed.
            history: everything in front of the row.

        Raises:
            RequestError: the constraints leave no token.
        """
        if not self.active(history):
            return logits
        row = logits.copy()
        for edit in (*self.fixed, *self.edits(history)):
            edit.apply(row)
        if np.isneginf(row.max()):
            raise self.no_token_left(history)
        return row

    def edits(self, history: History) -> Iterator[Edit]:
        """What is done to a row behind `history`, in this order, after what is `fixed`.

        The exclusions among it commute with the bias, which is fixed.
        """
        if history.mask is not None:
            yield Edit(Change.EXCLUDE, ~history.mask.allowed())
        last = history.tokens[-1] if history.output_length else -1
        ahead = self._bad_sequences.get(last, ())
        ended = [word[-1] for word in ahead if history.output_ends_with(word[:-1])]
        if ended:
            yield Edit(Change.EXCLUDE, _ids(ended))
        if self._holds_back(history):
            yield self._ends
        if self._penalties:
            yield from self._penalise(history)

    def no_token_left(self, history: History) -> RequestError:
        """The error for a row whose best logit is -inf once it is processed."""
        return RequestError(
            f"no token is left at output position {history.output_length}: grammar, "
            "allowed_token_ids, bad_words and min_tokens exclude all of them; loosen one",
            param="bad_words" if self._params.allowed_token_ids is None else "allowed_token_ids",
        )

    def _fixed(self) -> Iterator[Edit]:
        params = self._params
        if params.allowed_token_ids is not None:
            yield Edit(Change.KEEP, np.sort(_ids(params.allowed_token_ids)))
        bad_tokens = [word[0] for word in params.bad_words if len(word) == 1]
        if bad_tokens:
            yield Edit(Change.EXCLUDE, _ids(bad_tokens))
        if params.logit_bias:
            amounts = np.fromiter(params.logit_bias.values(), dtype=np.float64)
            yield Edit(Change.ADD, _ids(params.logit_bias), amounts)

    def _holds_back(self, history: History) -> bool:
        return self._ends.where.size > 0 and history.output_length < self._params.min_tokens

    def _penalise(self, history: History) -> Iterator[Edit]:
        params = self._params
        counts = history.counts()
        if params.repetition_penalty != 1.0:
            yield Edit(Change.SCALE, counts.seen(), np.array([params.repetition_penalty]))
        if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
            ids, times = counts.output()
            taken = params.frequency_penalty * times.astype(np.float64) + params.presence_penalty
            yield Edit(Change.ADD, ids, -taken)


def _ids(token_ids: Iterable[int]) -> npt.NDArray[np.int64]:
    return np.fromiter(token_ids, dtype=np.int64)
