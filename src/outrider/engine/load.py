"""From a model folder to a lane of the engine."""

from __future__ import annotations

from pathlib import Path

import torch

from outrider.config import EngineSettings
from outrider.engine.base import Decoder
from outrider.engine.kernels import Threads
from outrider.engine.memory import available_bytes
from outrider.engine.quantize import load_quantized
from outrider.engine.quantized import QuantizedDecoder
from outrider.engine.scheduler import Lane
from outrider.engine.thread import EngineThread
from outrider.engine.weights import load_model
from outrider.errors import ConfigError

__all__ = ["load_decoder", "open_lane"]

_SHARE_OF_MEMORY = 0.25
_LEAST = 2048  # tokens
"""What keys and values may take if nothing is set: of the memory that is available, but room for
so many tokens in any case."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_decoder(
    folder: Path,
    settings: EngineSettings,
    *,
    dtype: str,
    beside: Decoder | None = None,
) -> Decoder:
    """Load a model on the configured device.

    Args:
        dtype: what it runs in: float32, bfloat16, int8 or int4.
        beside: a decoder that takes turns with it on an engine thread; they share their threads.

    Raises:
        ConfigError: no such device, or one that cannot run the dtype.
        ModelError: see `load_model` and `load_quantized`.
    """
    if dtype in ("int8", "int4"):
        if settings.device != "cpu":
            raise ConfigError(
                f"dtype {dtype} runs on the CPU alone, not on device {settings.device!r};"
                " use bfloat16 or float32 there"
            )
        if isinstance(beside, QuantizedDecoder):
            threads = beside.threads
        else:
            threads = Threads(settings.threads or torch.get_num_threads())
        return load_quantized(folder, threads=threads)
    try:
        device = torch.device(settings.device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):  # torch says either, with a page of its own advice
        raise ConfigError(
            f"engine.device is {settings.device!r}, which torch cannot use here; try cpu"
        ) from None
    return load_model(folder, dtype=_DTYPES[dtype], device=device)


def open_lane(decoder: Decoder, settings: EngineSettings, engine: EngineThread | None) -> Lane:
    """Give a model its cache and its place on an engine thread; None starts a new one.

    Raises:
        ConfigError: the configured context is longer than the model's, or the configured cache
            memory holds next to nothing.
    """
    limit = decoder.config.context_length
    if settings.max_context > limit:
        raise ConfigError(
            f"engine.max_context is {settings.max_context}; this model's context is {limit}"
        )
    max_length = settings.max_context or limit
    kv_tokens = _kv_tokens(decoder, settings, max_length)
    started = engine or EngineThread(threads=settings.threads)
    try:
        return Lane(
            started,
            decoder,
            num_slots=settings.max_sessions,
            max_length=max_length,
            step_tokens=settings.step_tokens,
            kv_tokens=kv_tokens,
            reuse=settings.prefix_cache,
        )
    except BaseException:
        if engine is None:
            started.close()
        raise


def _kv_tokens(decoder: Decoder, settings: EngineSettings, max_length: int) -> int:
    """Tokens that fit the cache memory: what was set, or a share of what there is."""
    per_token = decoder.new_cache(num_slots=1, max_length=1).bytes_per_token
    if settings.kv_memory:
        return settings.kv_memory // per_token
    affordable = int(available_bytes(decoder.device) * _SHARE_OF_MEMORY) // per_token
    return max(min(affordable, settings.max_sessions * max_length), min(max_length, _LEAST))
