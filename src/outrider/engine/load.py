"""From a model folder to a lane of the engine."""

from __future__ import annotations

from pathlib import Path

import torch

from outrider.config import EngineSettings
from outrider.engine.decoder import Decoder
from outrider.engine.scheduler import Lane
from outrider.engine.thread import EngineThread
from outrider.engine.weights import load_model
from outrider.errors import ConfigError

__all__ = ["load_decoder", "open_lane"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_decoder(folder: Path, settings: EngineSettings) -> Decoder:
    """Load a model in the configured number format, on the configured device.

    Raises:
        ConfigError: no such device.
        ModelError: see `load_model`.
    """
    try:
        device = torch.device(settings.device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):  # torch says either, with a page of its own advice
        raise ConfigError(
            f"engine.device is {settings.device!r}, which torch cannot use here; try cpu"
        ) from None
    return load_model(folder, dtype=_DTYPES[settings.dtype], device=device)


def open_lane(decoder: Decoder, settings: EngineSettings, engine: EngineThread | None) -> Lane:
    """Give a model its cache and its place on an engine thread; None starts a new one.

    Raises:
        ConfigError: the configured context is longer than the model's.
    """
    limit = decoder.config.context_length
    if settings.max_context > limit:
        raise ConfigError(
            f"engine.max_context is {settings.max_context}; this model's context is {limit}"
        )
    return Lane(
        engine or EngineThread(threads=settings.threads),
        decoder,
        num_slots=settings.max_sessions,
        max_length=settings.max_context or limit,
        step_tokens=settings.step_tokens,
    )
