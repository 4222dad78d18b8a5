"""From what a user writes after `--draft` to a drafter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from outrider.config import Settings
from outrider.drafters.base import Drafter
from outrider.drafters.mixed import MixedDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.pairing import pair
from outrider.drafters.suffix import SuffixDrafter
from outrider.drafters.table import TableDrafter
from outrider.errors import ConfigError, VocabularyMismatch
from outrider.models import (
    ModelFolder,
    StageProgress,
    TableModel,
    resolve,
)
from outrider.types import DrafterInfo, TargetInfo

if TYPE_CHECKING:
    from outrider.drafters.translation import Translation
    from outrider.engine import Lane
    from outrider.engine.base import Decoder

__all__ = ["create_drafter"]


def create_drafter(
    spec: str,
    target: TargetInfo,
    lane: Lane | None,
    settings: Settings,
    *,
    progress: StageProgress | None = None,
) -> Drafter:
    """Build one drafter. Blocks, for seconds where a model is loaded.

    Args:
        spec: `ngram`; `suffix`; `self` or `layers:N`, the target or its first N layers;
            `table:FILE`; `mixed:A+B`, any of these together; else a model, named as a target is.
        target: what is drafted for.
        lane: the target's lane of the engine; None if it runs elsewhere.
        settings: number format, sessions, context.
        progress: called while a model is fetched or converted.

    Raises:
        ConfigError: the spec has no meaning for this target.
        VocabularyMismatch: drafter and target do not share their tokens, or too few.
        ModelError: the model cannot be had.
    """
    kind, _, argument = spec.partition(":")
    match kind:
        case "ngram" | "suffix" if not argument:
            return NgramDrafter() if kind == "ngram" else SuffixDrafter()
        case "http" | "https":
            return _remote(spec, target, settings)
        case "mixed":
            return _mixed(spec, target, lane, settings, progress)
        case "table":
            return _table(Path(argument), target, settings)
        case "self" | "layers" if kind == "layers" or not argument:
            return _own_layers(spec, target, lane, settings)
        case _:
            return _folder(spec, target, lane, settings, progress)


def _mixed(
    spec: str,
    target: TargetInfo,
    lane: Lane | None,
    settings: Settings,
    progress: StageProgress | None,
) -> Drafter:
    parts: list[str] = []
    for part in spec.removeprefix("mixed:").split("+"):
        if parts and all(one.startswith(("http:", "https:")) for one in (part, parts[-1])):
            parts[-1] += f"+{part}"  # servers of one model
        else:
            parts.append(part)
    distinct = len(set(parts)) == len(parts) > 1
    if not distinct or any(part in ("", "none") or part.startswith("mixed:") for part in parts):
        raise ConfigError(
            f"draft {spec!r} must name two drafters or more, each once, as in mixed:suffix+MODEL"
        )
    drafters = [create_drafter(part, target, lane, settings, progress=progress) for part in parts]
    return MixedDrafter(drafters, deadline_s=settings.speculation.deadline_ms / 1000)


def _table(file: Path, target: TargetInfo, settings: Settings) -> Drafter:
    model = TableModel.load(file)
    if target.vocab_fingerprint != model.vocab_fingerprint:
        raise VocabularyMismatch(
            f"draft table {file} has {model.vocab_size} ids, but target {target.model_id!r} is no "
            "table of as many; choose a table made for it, or ngram"
        )
    least = settings.speculation.min_confidence
    return TableDrafter(model, name=f"table:{file.stem}", min_confidence=least)


def _remote(spec: str, target: TargetInfo, settings: Settings) -> Drafter:
    from outrider.drafters.fleet import Fleet
    from outrider.drafters.remote import RemoteDrafter

    fleet = Fleet(spec.split("+"), target, settings)
    deadline_s = settings.speculation.remote_deadline_ms / 1000
    return RemoteDrafter(fleet, target, deadline_s=deadline_s)


def _own_layers(spec: str, target: TargetInfo, lane: Lane | None, settings: Settings) -> Drafter:
    lane = _engine_lane(spec, lane)
    kind, _, argument = spec.partition(":")
    if kind == "self":
        return _model(spec, lane, lane.decoder, target, settings, model_hash=target.model_hash)
    decoder = lane.decoder.truncated(_layers(spec, argument, lane))
    return _model(spec, lane, decoder, target, settings, model_hash=None)


def _engine_lane(spec: str, lane: Lane | None) -> Lane:
    if lane is None:
        raise ConfigError(
            f"draft {spec!r} needs a target that runs in this process's engine; use ngram or "
            "table:FILE"
        )
    return lane


def _layers(spec: str, argument: str, lane: Lane) -> int:
    most = lane.decoder.config.num_layers
    if not argument.isdecimal() or not 1 <= int(argument) <= most:
        raise ConfigError(
            f"draft {spec!r} must name 1 to {most} layers, as in layers:{most // 3 or 1}"
        )
    return int(argument)


def _folder(
    spec: str,
    target: TargetInfo,
    lane: Lane | None,
    settings: Settings,
    progress: StageProgress | None,
) -> Drafter:
    folder: ModelFolder = resolve(
        spec,
        home=settings.home,
        dtype=settings.engine.dtype,
        device=settings.engine.device,
        progress=progress,
    )
    translation = pair(folder, target)
    lane = _engine_lane(spec, lane)

    from outrider.engine import load_decoder

    decoder = load_decoder(folder.path, settings.engine, dtype=folder.dtype, beside=lane.decoder)
    return _model(
        folder.model_id,
        lane,
        decoder,
        target,
        settings,
        model_hash=folder.model_hash,
        translation=translation,
    )


def _model(
    name: str,
    lane: Lane,
    decoder: Decoder,
    target: TargetInfo,
    settings: Settings,
    *,
    model_hash: str | None,
    translation: Translation | None = None,
) -> Drafter:
    from outrider.drafters.model import SPREAD, ModelDrafter
    from outrider.engine import Lane

    context_length = min(decoder.config.context_length, target.context_length)
    spread = 1 if translation is None else SPREAD
    draft_lane = Lane(
        lane.engine,
        decoder,
        num_slots=settings.engine.max_sessions,
        max_length=min(decoder.config.context_length, spread * target.context_length),
        step_tokens=settings.engine.step_tokens,
        kv_tokens=spread * lane.cache.budget,  # so that what fits the target fits here as well
        reuse=settings.engine.prefix_cache,
    )
    info = DrafterInfo(
        name=name,
        deterministic=False,
        declares=True,
        ahead=True,
        context_length=context_length,
        model_hash=model_hash,
        vocab_fingerprint=target.vocab_fingerprint,
    )
    return ModelDrafter(
        draft_lane,
        info,
        vocab_size=target.vocab_size,
        eos_token_ids=target.eos_token_ids,
        translation=translation,
        min_confidence=settings.speculation.min_confidence,
    )
