"""Counters and the live speed."""

from outrider.metrics.meter import Speed, SpeedMeter
from outrider.metrics.metrics import Metrics

__all__ = ["Metrics", "Speed", "SpeedMeter"]
