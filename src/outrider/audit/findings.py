"""What an audit found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from outrider.audit.arms import Drafts
from outrider.audit.statistics import Comparison

__all__ = [
    "GreedyFinding",
    "Report",
    "Retold",
    "SampledFinding",
    "SeededFinding",
    "Together",
    "Verdict",
]


class Verdict(StrEnum):
    """What the audit comes to."""

    NO_DIFFERENCE = "no difference found"
    DIFFERS = "DIFFERS"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class SampledFinding:
    """One prompt, sampled many times.

    Attributes:
        name: of the prompt.
        comparison: of the two samples.
        adjusted: p-value by Holm's method.
        detectable: shift that would probably be found (total variation).
        drafts: what the server said of its drafts.
    """

    name: str
    comparison: Comparison
    adjusted: float
    detectable: float
    drafts: Drafts


@dataclass(frozen=True, slots=True)
class Together:
    """All prompts in one test, which finds a shift that is small everywhere."""

    g: float
    p_value: float
    adjusted: float
    detectable: float


@dataclass(frozen=True, slots=True)
class Retold:
    """Two outputs that should be one.

    Attributes:
        length: tokens (or pieces of text) of the one without speculation.
        differs_at: of the first that is not the same; None if all are.
        with_speculation, without: what stands there.
    """

    length: int
    differs_at: int | None
    with_speculation: str = ""
    without: str = ""


@dataclass(frozen=True, slots=True)
class GreedyFinding:
    """One prompt at temperature 0.

    Attributes:
        name: of the prompt.
        retold: with speculation against without.
        repeats: whether the server repeats itself without speculation; asked only after a
            difference.
    """

    name: str
    retold: Retold
    repeats: bool | None = None

    @property
    def differs(self) -> bool:
        return self.retold.differs_at is not None and self.repeats is not False


@dataclass(frozen=True, slots=True)
class SeededFinding:
    """One prompt with a seed.

    Attributes:
        name: of the prompt.
        honoured: without speculation, the same seed gave the same output twice.
        retold: with speculation against without; None if seeds are not honoured.
        promised: the server says that the output with speculation is the same.
    """

    name: str
    honoured: bool
    retold: Retold | None
    promised: bool

    @property
    def differs(self) -> bool:
        return self.promised and self.retold is not None and self.retold.differs_at is not None


@dataclass(frozen=True, slots=True)
class Report:
    """A whole audit.

    Attributes:
        url, baseline, model: what was audited.
        ids: outcomes are token ids, not pieces of text.
        samples, tokens, alpha: as planned.
        sampled, together, greedy, seeded: the parts.
        greedy_drafts: what the server said of drafts in the greedy part.
        plain_drafted: tokens drafted where speculation was off.
        retries: requests that failed and were sent again.
        verdict, reasons: what follows, in sentences.
    """

    url: str
    baseline: str | None
    model: str
    ids: bool
    samples: int
    tokens: int
    alpha: float
    sampled: Sequence[SampledFinding]
    together: Together
    greedy: Sequence[GreedyFinding]
    seeded: Sequence[SeededFinding]
    greedy_drafts: Drafts
    plain_drafted: int
    retries: int
    verdict: Verdict = Verdict.INCONCLUSIVE
    reasons: Sequence[str] = ()

    @property
    def drafts_told(self) -> bool:
        return any(finding.drafts.told for finding in self.sampled)

    @property
    def drafted(self) -> int:
        """Drafted tokens judged in the sampled part."""
        return sum(finding.drafts.drafted for finding in self.sampled)

    @property
    def accepted(self) -> int:
        return sum(finding.drafts.accepted for finding in self.sampled)
