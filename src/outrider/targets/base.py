"""The contract of a target: the model whose output the caller gets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from outrider.types import (
    Draft,
    SampledDraft,
    SamplingParams,
    TargetInfo,
    TokenIds,
    Verification,
    VerificationMethod,
)

__all__ = ["CacheUse", "NearDraft", "OpenRequest", "Opened", "Scoring", "Target"]


@dataclass(frozen=True, slots=True)
class NearDraft:
    """Drafting beside the target, wherever it runs: no draft travels, and no round waits for one.

    Attributes:
        drafter: one of `TargetInfo.drafters`.
        max_lookahead: most tokens that it drafts at a time.
    """

    drafter: str
    max_lookahead: int


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """All that a target needs to hold a session.

    Attributes:
        session_id: unique among the sessions of the target.
        epoch: counts reopenings; rounds of an earlier epoch are void.
        prompt_ids: the prompt.
        output_ids: output tokens committed so far (kept apart from the prompt, since what counts
            output tokens starts there); empty for a new session.
        sampling: validated parameters.
        noise_key: 64 bits that fix every random decision of the session.
        choice: index of this copy among the `n` of one request.
        tenant: whose request it is; nothing is shared between tenants.
        verification: how a `SampledDraft` is judged: token or block. Any other draft is matched.
        near_draft: who drafts beside the target while it runs alone; None if nobody does.
    """

    session_id: str
    epoch: int
    prompt_ids: TokenIds
    output_ids: TokenIds
    sampling: SamplingParams
    noise_key: int
    choice: int = 0
    tenant: str = ""
    verification: VerificationMethod = VerificationMethod.BLOCK
    near_draft: NearDraft | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """What a target says of a session that it holds now.

    Attributes:
        cached_tokens: tokens of the prompt that it need not compute, since an earlier session of
            the same tenant began with them.
    """

    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The memory of keys and values.

    Attributes:
        tokens: prompt and output tokens that all sessions together may come to, counted with each
            one's whole budget of output.
        budget_bytes: what they take.
        used_bytes: held for sessions now.
        retained_bytes: held for later sessions that begin as ended ones did; given up when room is
            needed.
    """

    tokens: int
    budget_bytes: int
    used_bytes: int
    retained_bytes: int


class Target(Protocol):
    """Judges drafts and decodes. Safe for use by many tasks of one event loop at a time."""

    async def describe(self) -> TargetInfo:
        """What the target is. Constant while it lives."""
        ...

    async def open(self, request: OpenRequest) -> Opened:
        """Hold a session until `release`.

        Raises:
            Overloaded: there is no room now.
            ContextLengthExceeded: there never will be.
        """
        ...

    def advance(
        self,
        session_id: str,
        round_id: int,
        position: int,
        draft: Draft | SampledDraft,
        run: int,
    ) -> AsyncGenerator[Verification]:
        """Judge the draft, then decode alone for up to `run` more tokens.

        The first answer judges `draft` (which may be empty) and holds at least one token; each
        further answer holds one, or more where a drafter beside the target guessed them. Closing
        the generator stops the work within the running step.

        Args:
            session_id: an open session.
            round_id: rises with every call; the same id again repeats the recorded answers,
                whatever draft comes with it.
            position: output tokens that the caller has committed; what the target decoded beyond
                is undone.
            draft: at most `capabilities.max_draft_tokens` tokens.
            run: tokens to decode alone afterwards.

        Raises:
            StaleRound: a later round was already asked for.
            SessionLost: no such session, or `position` lies beyond what is held; or whoever held it
                cannot be reached, and another can.
            TargetFailed: the model failed.
        """
        ...

    async def release(self, session_id: str) -> None:
        """Stop the session's work and free what it holds. Unknown sessions are ignored."""
        ...

    async def close(self) -> None:
        """Free everything. The target is unusable afterwards."""
        ...

    def occupancy(self) -> tuple[int, int]:
        """Sessions held, and sessions that fit."""
        ...

    def cache_use(self) -> CacheUse | None:
        """The memory of keys and values; None if only the number of sessions is bounded."""
        ...


@runtime_checkable
class Scoring(Protocol):
    """A target that can tell its logits, beside holding sessions."""

    async def logits(self, token_ids: TokenIds, rows: int) -> npt.NDArray[np.float32]:
        """Logits behind each of the last `rows` tokens of a sequence, shape [rows, V].

        Raises:
            Overloaded: there is no room now.
            ContextLengthExceeded: the sequence never fits.
            TargetFailed: the model failed.
        """
        ...
