"""The drafter that a draft server serves, from what a user names as its model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from outrider.config import Settings
from outrider.drafters import Drafter, TableDrafter
from outrider.drafters.wire import Description
from outrider.errors import ConfigError
from outrider.models import StageProgress, TableModel, load_text_assets, resolve
from outrider.text import HFTokenizer, fingerprint
from outrider.types import DrafterInfo

__all__ = ["ServedDrafter", "create_served_drafter"]

_TABLE = "table:"


@dataclass(frozen=True, slots=True)
class ServedDrafter:
    """A drafter on its own: what it is, and how to be rid of it.

    Attributes:
        drafter: drafts.
        description: what callers are told.
        close: frees everything.
    """

    drafter: Drafter
    description: Description
    close: Callable[[], Awaitable[None]]


def create_served_drafter(
    settings: Settings, *, progress: StageProgress | None = None
) -> ServedDrafter:
    """Build the drafter that `engine.target` names: a model, or `table:FILE`. Blocks for seconds.

    Its vocabulary, and the ids that end an output, are its own, or those of the target that it was
    trimmed for.

    Args:
        settings: model, number format, sessions, context.
        progress: called while a model is fetched or converted.

    Raises:
        ConfigError, ModelError: with the remedy in the message.
    """
    spec = settings.engine.target
    if spec.startswith(_TABLE):
        return _table(Path(spec.removeprefix(_TABLE)))
    if spec in ("ngram", "suffix", "none", "self") or spec.startswith(("layers:", "http", "grpc")):
        raise ConfigError(
            f"a draft server cannot serve {spec!r}; name a model or table:FILE with --model "
            "(ngram and suffix need no server: name them with --draft)"
        )
    return _model(settings, progress)


def _table(file: Path) -> ServedDrafter:
    model = TableModel.load(file)
    drafter = TableDrafter(model, name=f"table:{file.stem}")
    description = Description(
        name=f"table:{file.stem}",
        model_hash=model.model_hash,
        vocab_size=model.vocab_size,
        vocab_fingerprint=model.vocab_fingerprint,
        context_length=model.context_length,
    )
    return ServedDrafter(drafter, description, drafter.close)


def _model(settings: Settings, progress: StageProgress | None) -> ServedDrafter:
    engine = settings.engine
    folder = resolve(
        engine.target,
        home=settings.home,
        dtype=engine.dtype,
        device=engine.device,
        progress=progress,
    )
    assets = load_text_assets(folder.path)
    tokenizer = HFTokenizer(assets.tokenizer_json)

    from outrider.drafters.model import ModelDrafter
    from outrider.drafters.pairing import trimmed
    from outrider.engine import load_decoder, open_lane

    translation = trimmed(folder, tokenizer)
    decoder = load_decoder(folder.path, engine, dtype=folder.dtype)
    lane = open_lane(decoder, engine, None)
    description = Description(
        name=folder.model_id,
        model_hash=folder.model_hash,
        vocab_size=decoder.config.vocab_size if translation is None else tokenizer.vocab_size,
        vocab_fingerprint=fingerprint(tokenizer.token_strings),
        context_length=lane.cache.max_length,
    )
    info = DrafterInfo(
        name=description.name,
        deterministic=False,
        declares=True,
        ahead=True,
        context_length=description.context_length,
        model_hash=description.model_hash,
        vocab_fingerprint=description.vocab_fingerprint,
    )
    drafter = ModelDrafter(
        lane,
        info,
        vocab_size=description.vocab_size,
        eos_token_ids=assets.eos_token_ids,
        translation=translation,
        min_confidence=settings.speculation.min_confidence,
    )

    async def close() -> None:
        await drafter.close()
        lane.engine.close()

    return ServedDrafter(drafter, description, close)
