"""The round loop between gateway and models."""

from outrider.pipeline.create import create_pipeline
from outrider.pipeline.pipeline import Pipeline
from outrider.pipeline.round_log import Round
from outrider.pipeline.session import Session, SpeculationStats, Step

__all__ = ["Pipeline", "Round", "Session", "SpeculationStats", "Step", "create_pipeline"]
