"""What a draft server counts, in a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["DraftMetrics"]

_SECONDS = (
    0.0005,
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
)


class DraftMetrics:
    """Counters, histograms and gauges of one draft server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.latency = Histogram(
            "outrider_draft_seconds",
            "Time of a draft, new tokens read and all.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.tokens = Counter("outrider_draft_tokens", "Tokens drafted.", registry=registry)
        self.read_tokens = Counter(
            "outrider_draft_received_tokens",
            "Tokens of prompts and outputs received.",
            registry=registry,
        )
        self.lost = Counter(
            "outrider_draft_sessions_lost",
            "Requests for tokens of a session that are not held (409).",
            registry=registry,
        )
        self.requests = Counter(
            "outrider_requests",
            "Requests ended, by endpoint and status code.",
            ["endpoint", "status"],
            registry=registry,
        )
        self.sessions = Gauge("outrider_draft_sessions", "Sessions held.", registry=registry)
        self.running = Gauge("outrider_draft_running", "Requests worked on.", registry=registry)
