"""What a target server counts, in a registry of its own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from outrider.rpc import target_inference_pb2 as pb
from outrider.targets import CacheUse, Target
from outrider.types import Verification

__all__ = ["TargetMetrics"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class TargetMetrics:
    """Counters, histograms and gauges of one target server.

    Names that a gateway has too mean the same there.

    Args:
        target: whose occupancy and memory are shown.
    """

    def __init__(self, target: Target) -> None:
        self.registry = registry = CollectorRegistry()
        self.output_tokens = Counter("outrider_output_tokens", "Tokens emitted.", registry=registry)
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
        self.step_seconds = Histogram(
            "outrider_target_step_seconds",
            "Time of the target's step behind each answer, queueing apart.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.rounds = Counter("outrider_target_rounds", "Rounds asked for.", registry=registry)
        self.failures = Counter(
            "outrider_target_failures",
            "Openings and rounds that failed, by reason.",
            ["reason"],
            registry=registry,
        )
        self.requests = Counter(
            "outrider_requests",
            "HTTP requests ended, by endpoint and status code.",
            ["endpoint", "status"],
            registry=registry,
        )
        self.streams = Gauge("outrider_target_streams", "Streams of gateways.", registry=registry)
        self.leases_expired = Counter(
            "outrider_target_leases_expired",
            "Sessions released since their stream broke and nobody went on with them.",
            registry=registry,
        )
        self._show("outrider_target_sessions", "Sessions held.", lambda: target.occupancy()[0])
        self._show("outrider_target_slots", "Sessions that fit.", lambda: target.occupancy()[1])
        self._show_cache(target)

    def observe_answer(self, answer: Verification) -> None:
        """Count one answer of the target."""
        self.output_tokens.inc(len(answer.token_ids))
        self.step_seconds.observe(answer.step_s)
        if answer.drafted:
            self.accepted_tokens.inc(answer.accepted)
            self.rejected_tokens.inc(answer.drafted - answer.accepted)

    def observe_failure(self, failed: pb.Failed) -> None:
        """Count an opening or a round that failed."""
        self.failures.labels(pb.Reason.Name(failed.reason).lower()).inc()

    def _show_cache(self, target: Target) -> None:
        if target.cache_use() is None:
            return
        gauges: tuple[tuple[str, str, Callable[[CacheUse], int]], ...] = (
            ("budget", "Memory for keys and values.", lambda use: use.budget_bytes),
            ("used", "Keys and values of running sessions.", lambda use: use.used_bytes),
            (
                "retained",
                "Keys and values of ended sessions, kept for later ones until room is needed.",
                lambda use: use.retained_bytes,
            ),
        )
        for name, text, read in gauges:

            def value(read: Callable[[CacheUse], int] = read) -> float:
                use = target.cache_use()
                return 0 if use is None else read(use)

            self._show(f"outrider_kv_{name}_bytes", text, value)

    def _show(self, name: str, text: str, read: Callable[[], float]) -> None:
        Gauge(name, text, registry=self.registry).set_function(read)
