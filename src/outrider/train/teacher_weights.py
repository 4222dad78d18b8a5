"""The target as training wants it, and models in floating point as transformers reads them.

Models are served from folders that may hold 4-bit weights; a live teacher, and drafts made of
another model's layers, want the same weights from a folder of their own.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from outrider.config import Settings
from outrider.engine import read_config
from outrider.errors import ConfigError, CorruptModel, UnsupportedModel
from outrider.models import ModelFolder, StageProgress, load_text_assets, resolve
from outrider.text import HFTokenizer, fingerprint
from outrider.train.plan import Target

__all__ = ["find_target", "float_folder"]


def find_target(
    settings: Settings, *, live: bool = False, progress: StageProgress | None = None
) -> Target:
    """The target that the settings name, as it is served. It is not loaded.

    Args:
        live: bring it in floating point as well.

    Raises:
        ConfigError: the target is no model with weights here.
        ModelError: see `models.resolve` and `float_folder`.
    """
    engine = settings.engine
    if engine.target.startswith(("table:", "grpc:", "grpcs:")):
        raise ConfigError(
            f"{engine.target} has no weights here to make a draft from; name a model with --target"
        )
    folder = resolve(
        engine.target,
        home=settings.home,
        dtype=engine.dtype,
        device=engine.device,
        progress=progress,
    )
    live_folder = None
    if live:
        live_folder = float_folder(engine.target, home=settings.home, progress=progress).path
    tokenizer = HFTokenizer(load_text_assets(folder.path).tokenizer_json)
    return Target(
        model_id=folder.model_id,
        model_hash=folder.model_hash,
        vocab_fingerprint=fingerprint(tokenizer.token_strings),
        tokenizer=tokenizer,
        folder=folder.path,
        dtype=folder.dtype,
        live_folder=live_folder,
    )


def float_folder(
    spec: str,
    *,
    home: Path,
    dtype: str = "bfloat16",
    progress: StageProgress | None = None,
) -> ModelFolder:
    """The folder of a model that transformers can load.

    A GGUF file is converted once more, to `dtype`, whatever type it is served in: its weights
    are what their codes stand for. A folder in Hugging Face's form is used as it is.

    Args:
        spec: what a user writes for a model.
        home: the folder of models.
        dtype: of a converted folder: bfloat16, or float32, which is exact and twice as large.

    Raises:
        UnsupportedModel: transformers would not run it as the engine does; says why.
        ModelError: see `models.resolve`.
    """
    folder = resolve(spec, home=home, dtype=dtype, progress=progress)
    _refuse_what_transformers_cannot_read(folder.path)
    return folder


def _refuse_what_transformers_cannot_read(folder: Path) -> None:
    if read_config(folder).rope.scaling == "frequency_factors":
        raise UnsupportedModel(
            f"{folder} comes from a GGUF file that states rotary frequencies by number, which "
            "transformers cannot read; name the model's own Hugging Face folder or hub id"
        )
    if (name := _four_bit(folder)) is not None:
        raise UnsupportedModel(
            f"{folder} holds 4-bit weights ({name}), which transformers cannot read; name the "
            "GGUF file that they come from"
        )


def _four_bit(folder: Path) -> str | None:
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
        except (OSError, SafetensorError) as error:
            raise CorruptModel(
                f"{path} is not a whole safetensors file ({error}); fetch the model again"
            ) from error
        for name in names:
            if name.endswith(".codes"):
                return str(name)
    return None
