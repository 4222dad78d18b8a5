"""Controllers against recorded acceptance, in virtual time."""

from outrider.replay.compare import Comparison, compare
from outrider.replay.optimum import clairvoyant_ms
from outrider.replay.play import play
from outrider.replay.report import as_json, as_markdown, draw
from outrider.replay.trace import Trace, concatenate, load_traces
from outrider.replay.world import Clock, World

__all__ = [
    "Clock",
    "Comparison",
    "Trace",
    "World",
    "as_json",
    "as_markdown",
    "clairvoyant_ms",
    "compare",
    "concatenate",
    "draw",
    "load_traces",
    "play",
]
