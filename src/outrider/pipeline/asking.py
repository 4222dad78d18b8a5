"""One call of a drafter, and everything that can be wrong with what it answers."""

from __future__ import annotations

from outrider.drafters import DeclaringDrafter, Drafter, SessionView, TimedDrafter
from outrider.errors import DraftFailed
from outrider.types import Draft, SampledDraft

__all__ = ["Asker", "DrawLost"]


class DrawLost(DraftFailed):
    """What was drawn for ratio verification may have been lost, which biases what follows."""


class Asker:
    """Calls a drafter that may do anything: every fault of it becomes a `DraftFailed`.

    Args:
        drafter: who is asked.
        vocab_size: token ids at or above are illegal.
    """

    def __init__(self, drafter: Drafter, *, vocab_size: int) -> None:
        self._drafter = drafter
        self._vocab_size = vocab_size

    def deadline_s(self, max_tokens: int, otherwise: float) -> float:
        """Seconds that a draft of so many tokens may take, or `otherwise` if it does not say."""
        if isinstance(self._drafter, TimedDrafter):
            return self._drafter.deadline_s(max_tokens)
        return otherwise

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        """A draft to be matched, of at most `max_tokens`. Raises `DraftFailed`."""
        try:
            draft = await self._drafter.propose(view, max_tokens)
        except DraftFailed:
            raise
        except Exception as error:  # a faulty drafter must never cost the caller an answer
            raise _failed(error) from error
        for token_id in draft.token_ids:
            if not 0 <= token_id < self._vocab_size:
                raise DraftFailed(f"drafted token id {token_id} lies outside the vocabulary")
        return draft.clamp(max_tokens)

    async def read(self, view: SessionView) -> None:
        """Have the drafter get ready to draw. Draws nothing, so it may come too late.

        Raises:
            DraftFailed: it is not ready.
        """
        try:
            await self._declaring.prepare(view)
        except DraftFailed:
            raise
        except Exception as error:  # as above
            raise _failed(error) from error

    async def draw(self, view: SessionView, max_tokens: int) -> Draft | SampledDraft:
        """A draft for ratio verification, which may not be dropped.

        Raises:
            DrawLost: something may have been drawn, and is lost.
            DraftFailed: nothing was drawn.
        """
        try:
            draft = await self._declaring.draw(view, max_tokens)
        except DraftFailed:
            raise
        except Exception as error:  # as above
            raise DrawLost(str(_failed(error))) from error
        if isinstance(draft, SampledDraft) and not (
            0 < len(draft.rows) == len(draft) <= max_tokens
        ):
            raise DrawLost(
                f"{len(draft)} tokens with {len(draft.rows)} rows were drawn; at most {max_tokens} "
                "were asked for, each with its row"
            )
        if not all(0 <= token_id < self._vocab_size for token_id in draft.token_ids):
            raise DrawLost(f"the drafted ids {draft.token_ids} lie outside the vocabulary")
        return draft

    async def release(self, session_id: str) -> None:
        """Have the drafter forget the session."""
        await self._drafter.release(session_id)

    @property
    def _declaring(self) -> DeclaringDrafter:
        assert isinstance(self._drafter, DeclaringDrafter)  # noqa: S101 # its info says so
        return self._drafter


def _failed(error: Exception) -> DraftFailed:
    return DraftFailed(f"{type(error).__name__}: {error}")
