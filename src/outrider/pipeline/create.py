"""Build everything behind the gateway from settings."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from outrider.config import Settings
from outrider.drafters import Drafter, create_drafter
from outrider.errors import ConfigError
from outrider.metrics import Metrics
from outrider.models import StageProgress
from outrider.models.loading import in_daemon_thread
from outrider.pipeline.pipeline import Pipeline
from outrider.pipeline.recorder import AcceptanceRecorder, create_recorder
from outrider.targets import create_target
from outrider.types import DrafterInfo, TargetInfo

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
    recorder = create_recorder(settings.speculation)
    try:
        return await _create(settings, recorder, progress)
    except BaseException:
        if recorder is not None:
            await recorder.close()
        raise


async def _create(
    settings: Settings, recorder: AcceptanceRecorder | None, progress: StageProgress | None
) -> Pipeline:
    specs = [spec for spec in settings.speculation.drafts if spec != _NONE]
    target, lane = await in_daemon_thread(partial(create_target, settings, progress=progress))
    drafters: dict[str, tuple[Drafter, DrafterInfo] | None] = {}
    try:
        info = await target.describe()
        for spec in specs:
            if _runs_near(spec, info, settings):
                drafters[spec] = None
                continue
            drafter = await in_daemon_thread(
                partial(create_drafter, spec, info, lane, settings, progress=progress)
            )
            try:
                described = await drafter.describe()
            except BaseException:
                await drafter.close()
                raise
            if described.name in drafters:
                await drafter.close()
                raise ConfigError(
                    f"speculation.drafts has two drafters named {described.name}; requests could "
                    "not tell them apart"
                )
            if settings.speculation.ahead == "never":
                described = replace(described, ahead=False)
            drafters[described.name] = (drafter, described)
        return Pipeline(target, info, drafters, settings, Metrics(), recorder)
    except BaseException:
        for made_by in drafters.values():
            if made_by is not None:
                await made_by[0].close()
        await target.close()
        raise


def _runs_near(spec: str, info: TargetInfo, settings: Settings) -> bool:
    """Whether this drafter runs beside a target elsewhere, rather than here.

    Raises:
        ConfigError: it has to, and the target does not have it.
    """
    wanted = settings.speculation.draft_at
    elsewhere = settings.engine.target.startswith(("grpc://", "grpcs://"))
    if wanted == "target" and elsewhere and spec not in info.drafters:
        raise ConfigError(
            f"speculation.draft_at is target, and target {info.model_id!r} does not run drafter "
            f"{spec!r} (it runs {', '.join(info.drafters) or 'none'}); use auto, or start the "
            f"target server with --draft {spec}"
        )
    return wanted != "gateway" and spec in info.drafters
