"""From what a user writes after `--draft` to a draft that can be judged."""

from __future__ import annotations

from outrider.config import Settings
from outrider.drafters import NgramDrafter, SuffixDrafter
from outrider.drafters.model import SPREAD
from outrider.drafters.pairing import pair
from outrider.drafters.translated_rows import translated_sampler
from outrider.drafters.translation import Translation
from outrider.engine import Decoder, Lane, load_decoder
from outrider.errors import ConfigError
from outrider.models import StageProgress, resolve
from outrider.sampling.device import sampler_on
from outrider.train.candidates import Candidate
from outrider.train.model_candidate import ModelCandidate
from outrider.train.replay_candidate import ReplayCandidate
from outrider.types import TargetInfo

__all__ = ["open_candidate"]

_NOT_HERE = ("http:", "https:", "mixed:", "table:")


def open_candidate(
    spec: str,
    info: TargetInfo,
    lane: Lane,
    settings: Settings,
    *,
    progress: StageProgress | None = None,
) -> Candidate:
    """Open one draft beside the target. Blocks, for seconds where a model is loaded.

    Args:
        spec: `ngram`; `suffix`; `layers:N`, the target's first N layers; else a model.
        info, lane: of the target.
        settings: number format, context.

    Raises:
        ConfigError: the spec names nothing that can be judged from text alone.
        VocabularyMismatch: draft and target do not share their tokens, or too few.
        ModelError: the model cannot be had.
    """
    kind, _, argument = spec.partition(":")
    if spec == "ngram":
        return ReplayCandidate(spec, NgramDrafter())
    if spec == "suffix":
        return ReplayCandidate(spec, SuffixDrafter())
    if spec in ("self", "none", "") or spec.startswith(_NOT_HERE):
        raise ConfigError(
            f"draft {spec!r} cannot be judged from text alone; name a model, layers:N, ngram or "
            "suffix, each with a --draft of its own"
        )
    if kind == "layers":
        most = lane.decoder.config.num_layers
        if not argument.isdecimal() or not 1 <= int(argument) <= most:
            raise ConfigError(f"draft {spec!r} must name 1 to {most} layers, as in layers:1")
        return _candidate(spec, lane.decoder.truncated(int(argument)), info, lane, settings, None)
    engine = settings.engine
    folder = resolve(
        spec, home=settings.home, dtype=engine.dtype, device=engine.device, progress=progress
    )
    translation = pair(folder, info)
    decoder = load_decoder(folder.path, engine, dtype=folder.dtype, beside=lane.decoder)
    return _candidate(spec, decoder, info, lane, settings, translation)


def _candidate(
    name: str,
    decoder: Decoder,
    info: TargetInfo,
    lane: Lane,
    settings: Settings,
    translation: Translation | None,
) -> ModelCandidate:
    spread = 1 if translation is None else SPREAD
    own = Lane(
        lane.engine,
        decoder,
        num_slots=1,
        max_length=min(decoder.config.context_length, spread * info.context_length),
        step_tokens=settings.engine.step_tokens,
        reuse=False,
    )
    device = decoder.device
    if translation is None:
        return ModelCandidate(name, own, info, sampler_on(device), info.vocab_size, None)
    sampler = translated_sampler(translation, info.vocab_size, device)
    return ModelCandidate(name, own, info, sampler, translation.target_ids.size, translation)
