"""One answer as it arrived, and what follows from its times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from outrider.errors import TargetFailed

__all__ = ["Answer", "Chunk", "Counting", "Drafts", "check_length"]


class Counting(StrEnum):
    """How it is known which tokens came when."""

    STEPS = "steps of the pipeline"
    EACH = "the usage in every chunk"
    ONE = "a token in every chunk, as the usage at the end confirms"
    TOTAL = "the usage at the end, for the whole answer only"
    CHUNKS = "chunks taken for tokens, since the server tells no usage"

    @property
    def per_chunk(self) -> bool:
        """Whether each chunk's tokens are known."""
        return self is not Counting.TOTAL


@dataclass(frozen=True, slots=True)
class Chunk:
    """What arrived at once.

    Attributes:
        at: when, in s, by the clock of the run.
        tokens: how many; None if that is not known.
    """

    at: float
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Drafts:
    """What was told of an answer's drafts.

    Attributes:
        drafted, accepted: tokens judged, and confirmed.
        rounds: steps of the target; None if not told.
    """

    drafted: int
    accepted: int
    rounds: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer.

    Attributes:
        asked_at: when the request was sent, in s, by the clock of the run.
        chunks: those that brought tokens, at least one, in order.
        tokens: of the output, the one that ended it included if it was counted.
        counting: how they were counted.
        text: without reasoning.
        finish_reason: as told.
        prompt_tokens, cached_tokens: of the prompt, and those of them that were not computed anew;
            None if not told.
        drafts: None if nothing is told of them.
    """

    asked_at: float
    chunks: tuple[Chunk, ...]
    tokens: int
    counting: Counting
    text: str
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    drafts: Drafts | None = None

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.chunks[0].at - self.asked_at

    @property
    def latency_s(self) -> float:
        """Seconds to the last token."""
        return self.chunks[-1].at - self.asked_at

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last."""
        return self.chunks[-1].at - self.chunks[0].at

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token behind the first; None if there was none, or all came at once."""
        return self.decode_s / (self.tokens - 1) if self.tokens > 1 and self.decode_s > 0 else None

    def gaps_s(self) -> list[tuple[float, int | None]]:
        """Seconds between each chunk and the one before, and the tokens that it brought."""
        return [
            (later.at - sooner.at, later.tokens)
            for sooner, later in zip(self.chunks, self.chunks[1:], strict=False)
        ]


def check_length(tokens: int, max_tokens: int, where: str) -> None:
    """Raise `TargetFailed` unless an answer has as many tokens as it may have."""
    if tokens < 1:
        raise TargetFailed(f"{where} answered with no token; try another prompt or --ignore-eos")
    if tokens > max_tokens:
        raise TargetFailed(
            f"{where} answered with {tokens} tokens where at most {max_tokens} were asked for; "
            "does it honour max_tokens?"
        )
