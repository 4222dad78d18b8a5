"""What every target keeps of a session: tokens, sampler, the end, and the last round's answers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outrider.errors import OutriderError, SessionLost, StaleRound
from outrider.sampling import History, SamplerFactory, Support, TokenSampler, uniforms
from outrider.targets.base import OpenRequest
from outrider.types import (
    Draft,
    FinishReason,
    SampledDraft,
    TokenIds,
    TokenLogprobs,
    Verification,
    VerificationMethod,
)
from outrider.verify import match, verify_block, verify_tokens

__all__ = ["TargetSession"]

Rows = Any
"""Rows of logits, by index and in order, of the kind that the session's sampler reads."""


class _DeadEnd:
    """A row without a distribution: no token is left there, or the model failed.

    Its prefix may be one that the target never emits, so this is no error yet. To a ratio rule it
    is a row whose whole mass lies outside what can be drafted; to pick a token from it raises.
    """

    token_ids = None

    def __init__(self, error: OutriderError) -> None:
        self._error = error

    def probs_at(self, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return np.zeros(token_ids.size)

    def probs(self) -> npt.NDArray[np.float64]:
        raise self._error


class TargetSession:
    """One session as a target sees it. A target drives it from one thread.

    Args:
        request: what was opened.
        eos_token_ids: of the model.
        sampler: makes the sampler for the kind of rows that the target has.
    """

    def __init__(
        self,
        request: OpenRequest,
        eos_token_ids: frozenset[int],
        sampler: SamplerFactory = TokenSampler,
    ) -> None:
        self.session_id = request.session_id
        self.history = History(request.prompt_ids, request.output_ids)
        self._sampling = request.sampling
        self._ends = request.sampling.end_token_ids(eos_token_ids)
        self._sampler = sampler(
            request.sampling, request.noise_key, request.choice, end_token_ids=self._ends
        )
        block = request.verification is VerificationMethod.BLOCK
        self._verify_ratio = verify_block if block else verify_tokens
        # Not the noise key: whoever draws drafts knows that one, and a draft that depends on the
        # uniforms it is judged with biases the output.
        self._ratio_key = secrets.randbits(64)
        self.round_id = -1
        self._answers: list[Verification] = []

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and output."""
        return self.history.tokens

    @property
    def output_length(self) -> int:
        return self.history.output_length

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
        self.history.truncate(self.history.prompt_length + position)
        self.round_id = round_id
        self._answers = []
        return ()

    def judge(
        self,
        draft: Draft | SampledDraft,
        rows: Rows,
        *,
        step_s: float,
        batch_size: int = 1,
        batch_tokens: int | None = None,
    ) -> Verification:
        """Judge `draft`, commit the outcome and record the answer.

        Args:
            draft: what followed the committed tokens in the forward pass.
            rows: shape [len(draft) + 1, V]: logits behind the committed tokens and the first i
                draft tokens.
            step_s: seconds that the step took.
            batch_size: sessions that shared it.
            batch_tokens: tokens in it, of all sessions; None if only those of this one.
        """
        position, start = self.output_length, len(self.history)
        try:
            accepted, token = self._verify(draft, rows)
        finally:
            self.history.truncate(start)
        emitted, finish = self._cut((*draft.token_ids[:accepted], token))
        logprobs = self._extend(emitted, rows)
        answer = Verification(
            round_id=self.round_id,
            position=position,
            token_ids=emitted,
            drafted=len(draft),
            accepted=accepted,
            finish_reason=finish,
            step_s=step_s,
            batch_size=batch_size,
            batch_tokens=len(draft) + 1 if batch_tokens is None else batch_tokens,
            logprobs=logprobs,
        )
        self._answers.append(answer)
        return answer

    def _verify(self, draft: Draft | SampledDraft, rows: Rows) -> tuple[int, int]:
        """Accepted count, and the token that follows."""
        start = len(self.history)

        def behind(index: int) -> History:
            """The history in front of row `index`; rows are asked for in ascending order."""
            self.history.extend(draft.token_ids[len(self.history) - start : index])
            return self.history

        def sample(index: int) -> int:
            return self._sampler.sample(rows[index], behind(index))

        def support(index: int) -> Support | _DeadEnd:
            try:
                return self._sampler.support(rows[index], behind(index))
            except OutriderError as error:
                return _DeadEnd(error)

        if isinstance(draft, SampledDraft):
            fresh = uniforms(self._ratio_key, 0, self.round_id, np.arange(len(draft) + 1))
            return self._verify_ratio(draft, support, fresh)
        return match(draft.token_ids, sample)

    def _extend(self, emitted: TokenIds, rows: Rows) -> tuple[TokenLogprobs, ...] | None:
        """Commit the tokens, and tell of each what was asked for, behind what precedes it."""
        if self._sampling.logprobs is None:
            self.history.extend(emitted)
            return None
        found = []
        for token_id, row in zip(emitted, rows, strict=False):
            found.append(self._sampler.logprobs(row, self.history, token_id))
            self.history.extend((token_id,))
        return tuple(found)

    def _cut(self, tokens: TokenIds) -> tuple[TokenIds, FinishReason | None]:
        """End the tokens at the first that ends the output, or at the budget; stop beats length."""
        for index, token in enumerate(tokens[: self.remaining]):
            if token in self._ends:
                return tokens[: index + 1], FinishReason.STOP
        if len(tokens) >= self.remaining:
            return tokens[: self.remaining], FinishReason.LENGTH
        return tokens, None
