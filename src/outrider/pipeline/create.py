"""Build everything behind the gateway from settings."""

from __future__ import annotations

import asyncio

from outrider.config import Settings
from outrider.drafters import Drafter, create_drafter
from outrider.errors import ConfigError
from outrider.metrics import Metrics
from outrider.models import StageProgress
from outrider.pipeline.pipeline import Pipeline
from outrider.targets import create_target
from outrider.types import DrafterInfo

__all__ = ["create_pipeline"]

_NONE = "none"


async def create_pipeline(settings: Settings, *, progress: StageProgress | None = None) -> Pipeline:
    """Target, drafters and the pipeline over them. If any part fails, nothing is left running.

    Args:
        settings: what to build.
        progress: called, from another thread, while models are fetched and converted.

    Raises:
        ModelError, ConfigError: with the remedy in the message.
    """
    specs = [spec for spec in settings.speculation.drafts if spec != _NONE]
    if len(set(specs)) != len(specs):
        raise ConfigError(f"speculation.drafts names a drafter twice: {', '.join(specs)}")
    target, lane = await asyncio.to_thread(create_target, settings, progress=progress)
    try:
        info = await target.describe()
        drafters: dict[str, tuple[Drafter, DrafterInfo]] = {}
        for spec in specs:
            drafter = await asyncio.to_thread(
                create_drafter, spec, info, lane, settings, progress=progress
            )
            described = await drafter.describe()
            drafters[described.name] = (drafter, described)
        return Pipeline(target, info, drafters, settings, Metrics())
    except BaseException:
        await target.close()
        raise
