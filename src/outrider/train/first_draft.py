"""What a run begins with: the draft before it has learned anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from outrider.engine import read_config
from outrider.errors import ConfigError
from outrider.models import DRAFT_VOCABULARY, load_text_assets
from outrider.train.distil import load_draft
from outrider.train.initialise import Sizes, choose_layers, from_layers, from_scratch
from outrider.train.plan import DraftModel, Target
from outrider.train.store import Examples
from outrider.train.teacher_weights import float_folder
from outrider.train.vocabulary import choose_vocabulary, measure_coverage

__all__ = ["Origin", "start_draft"]

I64 = npt.NDArray[np.int64]

_DEFAULT_LAYERS = "4"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a first draft comes from.

    Attributes:
        start: another model with the target's tokenizer, or a draft made before; None for the
            target itself.
        layers: which of its layers, as in `initialise.choose_layers`; None for all of another
            model's, and for four of the target's.
        scratch: sizes of a random one, as in `hidden=256,layers=4,heads=4`, instead.
        vocabulary: how many of the target's tokens it keeps; None for all.
        tied: whether its head is its embedding; None for as it is where it comes from.
        seed: of a random one.

    Raises:
        ConfigError: they exclude each other.
    """

    start: str | None = None
    layers: str | None = None
    scratch: str | None = None
    vocabulary: int | None = None
    tied: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.scratch is not None and (self.start is not None or self.layers is not None):
            raise ConfigError(
                "--scratch begins with random numbers, --from and --layers with a model's: choose "
                "one"
            )

    def __str__(self) -> str:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return " ".join(f"{name}={value}" for name, value in given.items())


def start_draft(
    origin: Origin, spec: str, home: Path, target: Target, folders: Sequence[Examples]
) -> DraftModel:
    """Make a first draft.

    Args:
        spec: what the user wrote for the target.
        home: the folder of models.
        folders: answers to be trained on, which say what tokens are worth keeping.

    Raises:
        ConfigError, TrainingError, ModelError: it cannot be made; see `initialise`.
    """
    before = None if origin.start is None else Path(origin.start).expanduser()
    if before is not None and (before / DRAFT_VOCABULARY).exists():
        return _made_before(origin, before)
    target_ids, note = _vocabulary(origin, target, folders)
    if origin.scratch is not None:
        tied = True if origin.tied is None else origin.tied
        model = from_scratch(
            target.folder,
            _sizes(origin.scratch),
            target_ids=target_ids,
            tied=tied,
            seed=origin.seed,
        )
        return DraftModel(model, target_ids, note)
    folder = float_folder(origin.start or spec, home=home).path
    num_layers = read_config(folder).num_layers
    default = str(num_layers) if origin.start else str(min(int(_DEFAULT_LAYERS), num_layers))
    layers = choose_layers(origin.layers or default, num_layers)
    model = from_layers(
        folder, layers, tokenizer=target.tokenizer, target_ids=target_ids, tied=origin.tied
    )
    return DraftModel(model, target_ids, note)


def _made_before(origin: Origin, folder: Path) -> DraftModel:
    if origin.vocabulary is not None or origin.layers is not None:
        raise ConfigError(
            f"the draft in {folder} has layers and a vocabulary already; leave out --layers and "
            "--vocabulary"
        )
    return load_draft(folder)


def _vocabulary(
    origin: Origin, target: Target, folders: Sequence[Examples]
) -> tuple[I64 | None, str]:
    if origin.vocabulary is None:
        return None, ""
    assets = load_text_assets(target.folder)
    kept = choose_vocabulary(folders, target.tokenizer, origin.vocabulary, assets=assets)
    covered = measure_coverage(folders, kept)
    return kept, (
        f"{covered.size} of the target's tokens, {covered.tokens:.2%} of what it said and "
        f"{covered.mass:.2%} of its probability"
    )


def _sizes(given: str) -> Sizes:
    """Sizes of a draft from `name=number,...`; what is left out follows from the rest."""
    said: dict[str, int] = {}
    names = [each.name for each in fields(Sizes)]
    for part in given.split(","):
        name, _, number = part.partition("=")
        if name.strip() not in names or not number.strip().isdigit():
            raise ConfigError(
                f"--scratch {given!r}: {part!r} is none of {'=N, '.join(names)}=N; write such as "
                "hidden=256,layers=4,heads=4"
            )
        said[name.strip()] = int(number)
    hidden = said.setdefault("hidden", 256)
    said.setdefault("layers", 4)
    said.setdefault("heads", max(hidden // 64, 1))
    said.setdefault("kv_heads", said["heads"])
    # Llama's proportion, in steps of 32.
    said.setdefault("intermediate", max(round(hidden * 8 / 3 / 32) * 32, 32))
    return Sizes(**said)
