"""The target over a table of logits: exact, tiny, and served like a real model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import numpy as np
import numpy.typing as npt

from outrider.errors import ContextLengthExceeded, Overloaded, SessionLost, StaleRound
from outrider.models.table import TableModel
from outrider.targets.base import Opened, OpenRequest
from outrider.targets.session import TargetSession
from outrider.types import (
    NO_DRAFT,
    Capabilities,
    Draft,
    SampledDraft,
    TargetInfo,
    TokenIds,
    Verification,
)

__all__ = ["TableTarget"]


class TableTarget:
    """Decodes from a `TableModel`.

    Args:
        model: the table.
        model_id: the name under which it is served.
        max_sessions: sessions held at a time.
        max_context: a tighter limit than the table's own, in tokens; 0 sets none.
    """

    def __init__(
        self, model: TableModel, *, model_id: str, max_sessions: int = 32, max_context: int = 0
    ) -> None:
        self._model = model
        self._model_id = model_id
        self._max_sessions = max_sessions
        self._context_length = min(max_context or model.context_length, model.context_length)
        self._sessions: dict[str, TargetSession] = {}

    async def describe(self) -> TargetInfo:
        return TargetInfo(
            model_id=self._model_id,
            model_hash=self._model.model_hash,
            vocab_size=self._model.vocab_size,
            vocab_fingerprint=self._model.vocab_fingerprint,
            eos_token_ids=self._model.eos_token_ids,
            context_length=self._context_length,
            capabilities=Capabilities(batch_invariant=True, max_draft_tokens=64),
        )

    async def open(self, request: OpenRequest) -> Opened:
        full = len(self._sessions) >= self._max_sessions
        if full and request.session_id not in self._sessions:
            raise Overloaded(f"the target holds {self._max_sessions} sessions and has no room")
        self._sessions[request.session_id] = TargetSession(request, self._model.eos_token_ids)
        return Opened()

    async def advance(
        self,
        session_id: str,
        round_id: int,
        position: int,
        draft: Draft | SampledDraft,
        run: int,
    ) -> AsyncGenerator[Verification]:
        session = self._session(session_id)
        recorded = session.begin(round_id, position)[: run + 1]
        for answer in recorded:
            yield answer
        for step in range(len(recorded), run + 1):
            if session.finished:
                return
            yield self._step(session, draft if step == 0 else NO_DRAFT)
            await asyncio.sleep(0)  # other sessions get their turn
            if self._session(session_id).round_id != round_id:
                raise StaleRound(f"a later round of {session_id} began")

    async def logits(self, token_ids: TokenIds, rows: int) -> npt.NDArray[np.float32]:
        if len(token_ids) > self._context_length:
            raise ContextLengthExceeded(
                f"there are {len(token_ids)} tokens; this table's context is {self._context_length}"
            )
        lengths = range(len(token_ids) - rows + 1, len(token_ids) + 1)
        found = [self._model.logits(token_ids, length) for length in lengths]
        return np.stack(found).astype(np.float32)

    async def release(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    async def close(self) -> None:
        self._sessions.clear()

    def occupancy(self) -> tuple[int, int]:
        return len(self._sessions), self._max_sessions

    def cache_use(self) -> None:
        """It keeps nothing of a session but its tokens."""

    def _step(self, session: TargetSession, draft: Draft | SampledDraft) -> Verification:
        started = time.perf_counter()
        tail = session.tokens[max(len(session.tokens) - self._model.order, 0) :]
        context = [*tail, *draft.token_ids]
        rows = [
            self._model.logits(context, length) for length in range(len(tail), len(context) + 1)
        ]
        return session.judge(draft, rows, step_s=time.perf_counter() - started)

    def _session(self, session_id: str) -> TargetSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionLost(f"session {session_id} is not open here")
        return session
