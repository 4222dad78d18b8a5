"""The contract of a drafter: whatever guesses what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from outrider.types import Draft, DrafterInfo, SampledDraft, SamplingParams, TokenIds

__all__ = ["CachingDrafter", "DeclaringDrafter", "Drafter", "SessionView"]


@dataclass(frozen=True, slots=True)
class SessionView:
    """What a drafter may see of a session.

    Attributes:
        session_id: the same from round to round.
        tokens: prompt and committed output. The list itself, which only ever grows: read it up to
            `length`, and read only what is new since the last round.
        length: tokens that count in this round.
        prompt_length: how many of them are the prompt.
        sampling: how the target samples.
        noise_key: the session's noise, so that a sampling drafter can couple with the target.
        choice: index of this copy among the `n` of one request.
        tenant: whose session it is; nothing is shared between tenants.
        guess: tokens assumed to follow, not committed: draft behind them. Given only to drafters
            that say `DrafterInfo.ahead`.
    """

    session_id: str
    tokens: Sequence[int]
    length: int
    prompt_length: int
    sampling: SamplingParams
    noise_key: int
    choice: int = 0
    tenant: str = ""
    guess: TokenIds = ()


class Drafter(Protocol):
    """Guesses tokens. It may be wrong, late or absent: that costs speed, never correctness."""

    async def describe(self) -> DrafterInfo:
        """What the drafter is. Constant while it lives."""
        ...

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        """Guess up to `max_tokens` tokens that follow `view`; none is a fine answer.

        Cancelled at its deadline; the next call for the session must work all the same.

        Raises:
            DraftFailed: the drafter cannot draft now.
        """
        ...

    async def release(self, session_id: str) -> None:
        """Forget the session. Unknown sessions are ignored."""
        ...

    async def close(self) -> None:
        """Free everything. The drafter is unusable afterwards."""
        ...


@runtime_checkable
class CachingDrafter(Protocol):
    """A drafter that keeps something of earlier outputs."""

    def cache_bytes(self) -> int:
        """Memory of what it keeps."""
        ...


@runtime_checkable
class DeclaringDrafter(Drafter, Protocol):
    """A drafter of this process that can draw drafts for ratio verification.

    What it draws is never dropped, so it has no deadline while it draws. Whatever takes long or
    can fail comes before, in `prepare`.
    """

    async def prepare(self, view: SessionView) -> None:
        """Get ready to draw behind `view`: read what is new, draw nothing. May be given up.

        Raises:
            DraftFailed: the drafter cannot draft now.
        """
        ...

    async def draw(self, view: SessionView, max_tokens: int) -> Draft | SampledDraft:
        """Draw up to `max_tokens` tokens from distributions that it declares.

        Each is drawn with fresh randomness of the drafter's own: not with the session's noise,
        which the target uses too. How many are drawn may depend on the tokens before a token and on
        the distribution that it would be drawn from, never on the token or what follows. So if
        something fails on the way, the tokens drawn so far are the draft. `NO_DRAFT` if none was.

        Raises:
            DraftFailed: nothing was drawn.
        """
        ...
