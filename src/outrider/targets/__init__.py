"""Targets: the models whose output the caller gets."""

from outrider.targets.base import OpenRequest, Target
from outrider.targets.create import create_target
from outrider.targets.table import TableTarget

__all__ = ["OpenRequest", "TableTarget", "Target", "create_target"]
