"""Targets: the models whose output the caller gets."""

from outrider.targets.base import CacheUse, NearDraft, Opened, OpenRequest, Scoring, Target
from outrider.targets.create import create_target
from outrider.targets.table import TableTarget

__all__ = [
    "CacheUse",
    "NearDraft",
    "OpenRequest",
    "Opened",
    "Scoring",
    "TableTarget",
    "Target",
    "create_target",
]
