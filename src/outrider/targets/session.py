"""What every target keeps of a session: tokens, sampler, the end, and the last round's answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from outrider.errors import SessionLost, StaleRound
from outrider.sampling import TokenSampler
from outrider.targets.base import OpenRequest
from outrider.types import Draft, FinishReason, Verification
from outrider.verify import match

__all__ = ["TargetSession"]

LogitsRows = Sequence[npt.NDArray[np.floating]] | npt.NDArray[np.floating]


class TargetSession:
    """One session as a target sees it. A target drives it from one thread."""

    def __init__(self, request: OpenRequest, eos_token_ids: frozenset[int]) -> None:
        self.session_id = request.session_id
        self.tokens: list[int] = [*request.prompt_ids, *request.output_ids]
        self._prompt_length = len(request.prompt_ids)
        self._sampling = request.sampling
        self._sampler = TokenSampler(request.sampling, request.noise_key, request.choice)
        self._ends = request.sampling.stop_token_ids | (
            frozenset() if request.sampling.ignore_eos else eos_token_ids
        )
        self.round_id = -1
        self._answers: list[Verification] = []

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self._prompt_length

    @property
    def remaining(self) -> int:
        """Output tokens left in the budget."""
        return self._sampling.max_tokens - self.output_length

    @property
    def finished(self) -> bool:
        """Whether the output has ended."""
        if self.remaining <= 0:
            return True
        return self.output_length > 0 and self.tokens[-1] in self._ends

    def begin(self, round_id: int, position: int) -> Sequence[Verification]:
        """Start a round, undoing what was decoded beyond `position`.

        Returns:
            The recorded answers if this very round was answered before, else nothing.

        Raises:
            StaleRound, SessionLost: see `Target.advance`.
        """
        if round_id == self.round_id and self._answers:
            return tuple(self._answers)
        if round_id < self.round_id:
            raise StaleRound(f"round {round_id} of {self.session_id} came after {self.round_id}")
        if not 0 <= position <= self.output_length:
            raise SessionLost(
                f"{self.session_id} holds {self.output_length} output tokens, not {position}"
            )
        del self.tokens[self._prompt_length + position :]
        self.round_id = round_id
        self._answers = []
        return ()

    def judge(
        self,
        draft: Draft,
        rows: LogitsRows,
        *,
        step_s: float,
        batch_size: int = 1,
        batch_tokens: int | None = None,
    ) -> Verification:
        """Judge `draft` by matching, commit the outcome and record the answer.

        Args:
            draft: what followed the committed tokens in the forward pass.
            rows: shape [len(draft) + 1, V]: logits behind the committed tokens and the first i
                draft tokens.
            step_s: seconds that the step took.
            batch_size: sessions that shared it.
            batch_tokens: tokens in it, of all sessions; None if only those of this one.
        """
        start = len(self.tokens)
        accepted, token = match(
            draft.token_ids, lambda index: self._sampler.sample(rows[index], start + index)
        )
        emitted, finish = self._cut([*draft.token_ids[:accepted], token])
        answer = Verification(
            round_id=self.round_id,
            position=self.output_length,
            token_ids=tuple(emitted),
            drafted=len(draft),
            accepted=accepted,
            finish_reason=finish,
            step_s=step_s,
            batch_size=batch_size,
            batch_tokens=len(draft) + 1 if batch_tokens is None else batch_tokens,
        )
        self.tokens.extend(emitted)
        self._answers.append(answer)
        return answer

    def _cut(self, tokens: list[int]) -> tuple[list[int], FinishReason | None]:
        """End the tokens at the first that ends the output, or at the budget; stop beats length."""
        for index, token in enumerate(tokens[: self.remaining]):
            if token in self._ends:
                return tokens[: index + 1], FinishReason.STOP
        if len(tokens) >= self.remaining:
            return tokens[: self.remaining], FinishReason.LENGTH
        return tokens, None
