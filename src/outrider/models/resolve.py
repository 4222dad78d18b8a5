"""From what a user writes after `--target` to a folder that the engine can open.

In this order:

1. a name of the catalogue (`smollm2-135m-q4_1`), which wins over a file or folder of the same name:
   write `./smollm2-135m-q4_1` for that one;
2. a folder in Hugging Face's form, used as it is, or a GGUF file, converted once;
3. a hub id (`org/name`), unless a folder of that path exists.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from outrider.errors import ConfigError, CorruptModel, UnknownModel, UnsupportedModel
from outrider.models.catalogue import CATALOGUE, CatalogueEntry, HubSource, PackageSource, find
from outrider.models.fetch import Progress, fetch_package
from outrider.models.gguf_tokenizer import build_tokenizer
from outrider.models.home import move_into_place, one_at_a_time, require_space, staging
from outrider.models.hub import fetch_hub, is_hub_id
from outrider.models.identity import file_identity, weights_hash

__all__ = ["Convert", "ModelFolder", "StageProgress", "resolve"]

StageProgress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is in all."""

Convert = Callable[[Path, Path, str, Progress | None], None]
"""Writes a GGUF file's config.json and model.safetensors into a folder, in a type given by name."""

_CONVERTER_VERSION: Final = 3
"""Raise it when a converted folder's contents change, so that old ones are made anew."""

_BYTES_PER_ELEMENT: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 2, "int4": 2}
"""At most, of what a GGUF is converted to."""

_AUTO: Final = "auto"

_PATH_STARTS: Final = ("/", "./", "../", "~")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on disk, ready for the engine.

    Attributes:
        path: a folder with config.json, safetensors files and tokenizer.json.
        model_id: the name to serve it under.
        model_hash: identifies the weights and the type they run in.
        dtype: what it runs in: what was asked for, `auto` decided.
    """

    path: Path
    model_id: str
    model_hash: str
    dtype: str


def resolve(
    spec: str,
    *,
    home: Path,
    dtype: str = "float32",
    device: str = "cpu",
    progress: StageProgress | None = None,
    convert: Convert | None = None,
) -> ModelFolder:
    """The model that `spec` names, brought here and converted if need be.

    Args:
        spec: what the user wrote; see the module's docstring.
        home: the folder of models; see `outrider.models.home`.
        dtype: float32, bfloat16, float16, int8, int4 or auto: what the model runs in, which a GGUF
            is converted for; part of the hash.
        device: what it runs on; decides what auto is.
        progress: called while fetching and converting.
        convert: in place of the engine's own converter.

    Raises:
        ConfigError: an unknown `dtype`.
        UnknownModel: nothing of that name.
        FetchFailed: it could not be brought here, or converted for want of space.
        CorruptModel: it is there but cannot be read.
        UnsupportedModel: it is of a kind that the engine does not run.
    """
    if dtype not in (*_BYTES_PER_ELEMENT, _AUTO):
        raise ConfigError(
            f"unknown dtype {dtype!r}; choose one of {', '.join(_BYTES_PER_ELEMENT)}, {_AUTO}"
        )
    convert = convert or _engine_convert
    entry = find(spec)
    path = Path(spec).expanduser()
    is_gguf = isinstance(entry.source, PackageSource) if entry is not None else path.is_file()
    if dtype == _AUTO:
        dtype = _best(is_gguf, device)
    elif dtype == "int4" and not is_gguf:
        raise ConfigError(
            f"dtype int4 takes 4-bit weights as they are, which {spec!r} does not have; use int8,"
            " or name a GGUF file"
        )
    if entry is not None:
        return _from_catalogue(entry, home, dtype, progress, convert)
    if path.is_dir():
        return _from_folder(path, path.resolve().name, dtype)
    if path.is_file():
        if not _is_gguf(path):
            raise UnknownModel(
                f"{spec} is a file but not a GGUF; name a GGUF file, a model's folder, or one of "
                f"{_names()}"
            )
        return _from_gguf(
            path,
            path.stem,
            file_identity(path),
            home=home,
            dtype=dtype,
            progress=progress,
            convert=convert,
        )
    if is_hub_id(spec) and not spec.startswith(_PATH_STARTS) and not spec.endswith(".gguf"):
        return _from_folder(fetch_hub(spec), spec, dtype)
    raise _unknown(spec)


def _from_catalogue(
    entry: CatalogueEntry,
    home: Path,
    dtype: str,
    progress: StageProgress | None,
    convert: Convert,
) -> ModelFolder:
    match entry.source:
        case HubSource(repo_id):
            return _from_folder(fetch_hub(repo_id), entry.name, dtype)
        case PackageSource() as source:
            # What was converted once needs its source no more.
            place = _converted(home, source.sha256, dtype)
            made = _read_converted(place, entry.name, dtype)
            if made is not None:
                return made
            path = fetch_package(
                entry, source, home=home, progress=_stage(progress, f"fetching {entry.name}")
            )
            return _from_gguf(
                path,
                entry.name,
                source.sha256,
                home=home,
                dtype=dtype,
                progress=progress,
                convert=convert,
            )


def _from_folder(path: Path, model_id: str, dtype: str) -> ModelFolder:
    if not (path / "config.json").exists():
        ggufs = sorted(path.glob("*.gguf"))
        remedy = f"name the file, {ggufs[0]}" if ggufs else "name a folder in Hugging Face's form"
        raise CorruptModel(f"{path} has no config.json; {remedy}")
    if not any(path.glob("*.safetensors")):
        if any(path.glob("*.bin")):
            raise UnsupportedModel(
                f"{path} has its weights as pickles (*.bin), which can run code when read; save "
                "the model with transformers' save_pretrained to get safetensors"
            )
        raise CorruptModel(f"{path} has no *.safetensors file; get the model's files anew")
    return ModelFolder(path.resolve(), model_id, weights_hash(path, dtype), dtype)


def _from_gguf(
    path: Path,
    model_id: str,
    identity: str,
    *,
    home: Path,
    dtype: str,
    progress: StageProgress | None,
    convert: Convert,
) -> ModelFolder:
    place = _converted(home, identity, dtype)
    made = _read_converted(place, model_id, dtype)
    if made is not None:
        return made
    from outrider.engine import read_gguf_header  # noqa: PLC0415 # imports torch

    header = read_gguf_header(path)
    tokenizer = build_tokenizer(header.metadata)
    with one_at_a_time(home, f"convert-{place.name}"):
        made = _read_converted(place, model_id, dtype)
        if made is not None:
            return made
        needed = header.num_parameters * _BYTES_PER_ELEMENT[dtype]
        require_space(home, needed + 64 * 2**20, f"converting {model_id} to {dtype}")
        with staging(home) as workplace:
            # A folder with ordinary permissions; the staging folder itself is private.
            folder = workplace / "model"
            folder.mkdir()
            convert(path, folder, dtype, _stage(progress, f"converting {model_id}"))
            (folder / "tokenizer.json").write_text(tokenizer.tokenizer_json, encoding="utf-8")
            _write_json(folder / "tokenizer_config.json", tokenizer.config)
            _write_json(folder / "generation_config.json", tokenizer.generation_config)
            model_hash = weights_hash(folder, dtype)
            record = {
                "model_hash": model_hash,
                "source": path.name,
                "source_identity": identity,
                "dtype": dtype,
                "converter_version": _CONVERTER_VERSION,
            }
            _write_json(folder / "outrider.json", record)
            move_into_place(folder, place)
    return ModelFolder(place.resolve(), model_id, model_hash, dtype)


def _best(is_gguf: bool, device: str) -> str:
    """The dtype that serves best without changing what the model says by much."""
    if not device.startswith("cpu"):
        return "bfloat16"
    if importlib.util.find_spec("outrider._native") is None:  # the package was built without it
        return "float32"
    return "int4" if is_gguf else "int8"


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _converted(home: Path, identity: str, dtype: str) -> Path:
    key = sha256(f"{identity} {dtype} {_CONVERTER_VERSION}".encode()).hexdigest()[:24]
    return home / "converted" / key


def _read_converted(place: Path, model_id: str, dtype: str) -> ModelFolder | None:
    """The converted model at `place`, which is there whole or not at all; None if not."""
    try:
        record = json.loads((place / "outrider.json").read_text(encoding="utf-8"))
        return ModelFolder(place.resolve(), model_id, str(record["model_hash"]), dtype)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, OSError) as error:
        raise CorruptModel(
            f"{place} cannot be read ({error}); delete it and start again"
        ) from error


def _engine_convert(source: Path, folder: Path, dtype: str, progress: Progress | None) -> None:
    import torch  # noqa: PLC0415 # heavy, and needed by this factory alone

    from outrider.engine.gguf import convert_gguf  # noqa: PLC0415 # imports torch

    quantized = dtype in ("int8", "int4")
    convert_gguf(
        source,
        folder,
        dtype=torch.float16 if quantized else getattr(torch, dtype),
        keep_four_bit=dtype == "int4",
        progress=progress,
    )


def _stage(progress: StageProgress | None, what: str) -> Progress | None:
    if progress is None:
        return None
    return lambda done, total: progress(what, done, total)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _unknown(spec: str) -> UnknownModel:
    if spec.startswith(_PATH_STARTS) or spec.endswith(".gguf") or spec.count("/") > 1:
        return UnknownModel(f"there is no file or folder {spec!r}; working in {Path.cwd()}")
    close = difflib.get_close_matches(spec, [entry.name for entry in CATALOGUE], n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return UnknownModel(
        f"unknown model {spec!r}; {hint}it may be a name ({_names()}), a folder in Hugging Face's "
        "form, a GGUF file, or a hub id such as org/name"
    )


def _names() -> str:
    return ", ".join(entry.name for entry in CATALOGUE)
