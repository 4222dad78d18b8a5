"""One answer of a peer as it arrived: how many tokens came when."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.types import TokenIds

__all__ = ["Answer", "Chunk"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What arrived at once.

    Attributes:
        at: seconds on the machine's monotonic clock.
        tokens: how many tokens it held, at least 1.
    """

    at: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer.

    Attributes:
        asked_at: when the prompt was sent, seconds on the machine's monotonic clock.
        chunks: in order of arrival.
        ended_at: when the peer said that the answer is complete.
        prompt_tokens: how long the peer took the prompt to be; None if it does not say.
        token_ids: of the output, in order; None if the peer did not tell all of them.
    """

    asked_at: float
    chunks: tuple[Chunk, ...]
    ended_at: float
    prompt_tokens: int | None = None
    token_ids: TokenIds | None = None

    @property
    def tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token."""
        return self.chunks[0].at - self.asked_at if self.chunks else None

    @property
    def wall_s(self) -> float:
        return self.ended_at - self.asked_at

    @property
    def decoded(self) -> int:
        """Tokens that came after the first chunk, so that only those count which took time."""
        return self.tokens - self.chunks[0].tokens if self.chunks else 0

    @property
    def decode_s(self) -> float:
        """Seconds from the first chunk to the last."""
        return self.chunks[-1].at - self.chunks[0].at if self.chunks else 0.0
