"""Targets: the models whose output the caller gets."""

from outrider.targets.base import CacheUse, Opened, OpenRequest, Target
from outrider.targets.create import create_target
from outrider.targets.table import TableTarget

__all__ = ["CacheUse", "OpenRequest", "Opened", "TableTarget", "Target", "create_target"]
