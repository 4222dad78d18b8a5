"""One choice of one request on its way through the pipeline."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from outrider.control import LookaheadController
from outrider.drafters import PREDICTION, SessionView
from outrider.errors import TargetFailed
from outrider.pipeline.round_log import RoundLog
from outrider.targets import OpenRequest
from outrider.types import (
    Exactness,
    FinishReason,
    Origin,
    TokenIds,
    TokenLogprobs,
    Verification,
    VerificationMethod,
)

__all__ = ["Session", "SpeculationStats", "Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens that became certain at once.

    Attributes:
        token_ids: at least one.
        origins: where each came from.
        finish_reason: set with the last step.
        elapsed_s: seconds since the step before, or since the session was made.
        logprobs: one per token, if the session asked for them.
    """

    token_ids: TokenIds
    origins: tuple[Origin, ...]
    finish_reason: FinishReason | None
    elapsed_s: float
    logprobs: tuple[TokenLogprobs, ...] | None = None


@dataclass(slots=True)
class SpeculationStats:
    """What speculation did for a session.

    Attributes:
        drafter: name of the drafter, or None if the session runs without.
        rounds: steps of the target.
        drafts: rounds that judged at least one drafted token.
        drafted, accepted: tokens judged, and tokens confirmed.
        ratio_drafted: those of the drafted tokens that were judged by ratios.
        predicted, predicted_accepted: those of the drafted and of the accepted tokens that came
            from the request's own prediction.
        failures: drafts lost to a failing or late drafter.
    """

    drafter: str | None = None
    rounds: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    ratio_drafted: int = 0
    predicted: int = 0
    predicted_accepted: int = 0
    failures: int = 0


@dataclass(slots=True)
class Session:
    """The state of one choice: committed tokens, budget, statistics.

    Attributes:
        opening: what the target is told when the session opens.
        controller: how much is drafted.
        max_draft_tokens: longest draft that target and request allow; 0 decodes plainly.
        preferred: how drafts are judged where sampling parameters and drafter leave a choice.
        batch_invariant: whether the target's results do not depend on the shape of its batches.
        stats: what speculation did so far.
        prediction: what the caller says the output will largely be; drafted first.
        log: of its rounds; None if nobody wants to know.
        round_id: the latest round asked for.
        reopenings: times in a row that the target lost the session.
        cached_tokens: tokens of the prompt that the target had from an earlier session.
        tokens: prompt and committed output; only ever grows.
        started_at, first_token_at, last_token_at: readings of `time.perf_counter`, in seconds.
    """

    opening: OpenRequest
    controller: LookaheadController
    max_draft_tokens: int
    preferred: VerificationMethod
    batch_invariant: bool
    stats: SpeculationStats
    prediction: TokenIds = ()
    log: RoundLog | None = None
    round_id: int = 0
    reopenings: int = 0
    cached_tokens: int = 0
    tokens: list[int] = field(init=False)
    finish_reason: FinishReason | None = None
    started_at: float = field(default_factory=time.perf_counter)
    first_token_at: float | None = None
    last_token_at: float | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.opening.prompt_ids)

    @property
    def session_id(self) -> str:
        return self.opening.session_id

    @property
    def output_ids(self) -> TokenIds:
        return tuple(self.tokens[len(self.opening.prompt_ids) :])

    @property
    def output_length(self) -> int:
        return len(self.tokens) - len(self.opening.prompt_ids)

    @property
    def most(self) -> int:
        """Tokens that prompt and output may come to."""
        return len(self.opening.prompt_ids) + self.opening.sampling.max_tokens

    @property
    def remaining(self) -> int:
        """Output tokens left in the budget."""
        return self.opening.sampling.max_tokens - self.output_length

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def view(self, guess: TokenIds = ()) -> SessionView:
        """What a drafter may see now, and what it is to assume behind it."""
        return SessionView(
            session_id=self.session_id,
            tokens=self.tokens,
            length=len(self.tokens),
            prompt_length=len(self.opening.prompt_ids),
            sampling=self.opening.sampling,
            noise_key=self.opening.noise_key,
            choice=self.opening.choice,
            tenant=self.opening.tenant,
            guess=guess,
        )

    def commit(self, answer: Verification, *, by_ratios: bool = False, source: str = "") -> Step:
        """Append what the target answered.

        Args:
            answer: of the target, for what is committed.
            by_ratios: whether a draft in it was judged by ratios.
            source: of that draft.

        Raises:
            TargetFailed: the answer is not for what is committed, or holds nothing.
        """
        if answer.position != self.output_length or not answer.token_ids:
            raise TargetFailed(
                f"the target answered with {len(answer.token_ids)} tokens behind "
                f"{answer.position}; {self.output_length} are committed"
            )
        self.reopenings = 0
        self.tokens.extend(answer.token_ids)
        self.finish_reason = answer.finish_reason
        now = time.perf_counter()
        elapsed_s = now - (self.last_token_at or self.started_at)
        self.last_token_at = now
        if self.first_token_at is None:
            self.first_token_at = now
        self.stats.rounds += 1
        if answer.drafted:
            self.stats.drafts += 1
            self.stats.drafted += answer.drafted
            self.stats.accepted += answer.accepted
            self.stats.ratio_drafted += answer.drafted if by_ratios else 0
            if source == PREDICTION:
                self.stats.predicted += answer.drafted
                self.stats.predicted_accepted += answer.accepted
        return Step(
            answer.token_ids, answer.origins(), answer.finish_reason, elapsed_s, answer.logprobs
        )

    def verification(self) -> tuple[VerificationMethod, Exactness, str | None]:
        """How the output was verified, what holds of it, and under which condition."""
        sampling = self.opening.sampling
        rounding = "up to floating-point rounding where the best candidates are nearly equal"
        if self.stats.drafted == 0:
            # Passes of other shapes than its own computed the beginning that was taken over.
            exactly = self.batch_invariant or self.cached_tokens == 0
            return VerificationMethod.NONE, Exactness.IDENTICAL, None if exactly else rounding
        if self.stats.ratio_drafted:
            reason = "drafts are judged by ratios of probabilities, with randomness of their own"
            return self.opening.verification, Exactness.DISTRIBUTION, reason
        if not sampling.greedy and sampling.seed is None:
            reason = "sampled without a seed, so that every run draws anew"
            return VerificationMethod.MATCHING, Exactness.DISTRIBUTION, reason
        method = VerificationMethod.GREEDY if sampling.greedy else VerificationMethod.MATCHING
        if self.batch_invariant:
            return method, Exactness.IDENTICAL, None
        return method, Exactness.IDENTICAL, rounding
