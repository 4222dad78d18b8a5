"""What is counted, under the names that monitoring knows, in one registry per app."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from outrider.metrics.meter import SpeedMeter
from outrider.types import Verification

__all__ = ["Metrics"]

_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)


class Metrics:
    """Counters, histograms and gauges of one app.

    The `spec_decode_num_*` names are those that vLLM introduced and other engines share.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.meter = SpeedMeter()
        registry = self.registry
        self.accepted_tokens = Counter(
            "speculative_decoding_accepted_tokens",
            "Drafted tokens that the target confirmed.",
            registry=registry,
        )
        self.rejected_tokens = Counter(
            "speculative_decoding_rejected_tokens",
            "Drafted tokens that were verified and not confirmed.",
            registry=registry,
        )
        self.step_acceptance = Histogram(
            "speculative_decoding_step_acceptance",
            "Drafted tokens confirmed in one round.",
            buckets=tuple(range(17)),
            registry=registry,
        )
        self.verification_latency = Histogram(
            "speculative_decoding_verification_latency_seconds",
            "Time of the target's step that judged a draft.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.drafts = Counter(
            "spec_decode_num_drafts", "Drafts judged.", ["drafter"], registry=registry
        )
        self.draft_tokens = Counter(
            "spec_decode_num_draft_tokens", "Drafted tokens judged.", ["drafter"], registry=registry
        )
        self.spec_accepted_tokens = Counter(
            "spec_decode_num_accepted_tokens",
            "Drafted tokens confirmed.",
            ["drafter"],
            registry=registry,
        )
        self.accepted_per_position = Counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens confirmed, by position in the draft.",
            ["position"],
            registry=registry,
        )
        self.draft_failures = Counter(
            "outrider_draft_failures",
            "Drafts lost to a failing or late drafter.",
            registry=registry,
        )
        self.drafters_demoted = Counter(
            "outrider_drafters_demoted",
            "Drafters whose tokens did not fit what they declared; their drafts are now matched.",
            ["drafter"],
            registry=registry,
        )
        self.lookahead = Histogram(
            "outrider_lookahead",
            "Tokens asked of the drafter, round by round; 0 where the target runs on alone.",
            ["drafter"],
            buckets=tuple(range(17)),
            registry=registry,
        )
        self.sessions_reopened = Counter(
            "outrider_sessions_reopened",
            "Sessions that a target lost, opened again from what was committed.",
            registry=registry,
        )
        self.output_tokens = Counter("outrider_output_tokens", "Tokens emitted.", registry=registry)
        self.prompt_tokens = Counter(
            "outrider_prompt_tokens", "Prompt tokens of the choices begun.", registry=registry
        )
        self.cached_prompt_tokens = Counter(
            "outrider_cached_prompt_tokens",
            "Prompt tokens that were not computed, since an earlier prompt began with them.",
            registry=registry,
        )
        self.prefix_hits = Counter(
            "outrider_prefix_hits",
            "Choices begun that took the beginning of their prompt from an earlier one.",
            registry=registry,
        )
        self.requests = Counter(
            "outrider_requests",
            "Requests ended, by endpoint and status code.",
            ["endpoint", "status"],
            registry=registry,
        )
        self.time_to_first_token = Histogram(
            "outrider_time_to_first_token_seconds",
            "From the start of a choice, queueing apart, to its first token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.inter_token_latency = Histogram(
            "outrider_inter_token_latency_seconds",
            "Time per output token after the first; tokens that come together share it.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.running = Gauge("outrider_running", "Choices being decoded.", registry=registry)
        self.queued = Gauge("outrider_queued", "Requests waiting for room.", registry=registry)

    def observe_plan(self, lookahead: int, drafter: str | None) -> None:
        """Count what a controller decided for one round."""
        if drafter is not None:
            self.lookahead.labels(drafter).observe(lookahead)

    def observe_opening(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count one session begun, and how much of its prompt the target had already."""
        self.prompt_tokens.inc(prompt_tokens)
        if cached_tokens:
            self.cached_prompt_tokens.inc(cached_tokens)
            self.prefix_hits.inc()

    def observe_answer(self, answer: Verification, drafter: str | None, elapsed_s: float) -> None:
        """Count one answer of the target.

        Args:
            answer: what it answered.
            drafter: who drafted, for the label.
            elapsed_s: seconds since the session's answer before, drafting included.
        """
        emitted = len(answer.token_ids)
        self.output_tokens.inc(emitted)
        if answer.position == 0:
            self.time_to_first_token.observe(elapsed_s)
        else:
            for _ in range(emitted):
                self.inter_token_latency.observe(elapsed_s / emitted)
            self.meter.observe(answer, elapsed_s)
        if answer.drafted == 0:
            return
        label = drafter or "none"
        self.accepted_tokens.inc(answer.accepted)
        self.rejected_tokens.inc(answer.drafted - answer.accepted)
        self.step_acceptance.observe(answer.accepted)
        self.verification_latency.observe(answer.step_s)
        self.drafts.labels(label).inc()
        self.draft_tokens.labels(label).inc(answer.drafted)
        self.spec_accepted_tokens.labels(label).inc(answer.accepted)
        for position in range(answer.accepted):
            self.accepted_per_position.labels(str(position)).inc()
