"""The safetensors files of a Hugging Face folder, read one tensor at a time.

Pickled checkpoints run code when they are opened and are refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from outrider.errors import CorruptModel, UnknownModel, UnsupportedModel

__all__ = ["Checkpoint"]

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_FLOATS: Final = ("F32", "F16", "BF16", "F64")
# Recomputed from the config; some old checkpoints carry it along.
_DERIVED: Final = "self_attn.rotary_emb.inv_freq"


class Checkpoint:
    """The tensors of a folder by name, over however many files."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        """Opens the files, which `stack` closes.

        Raises:
            UnknownModel: the folder has no weights.
            CorruptModel: a file is missing or damaged; names it.
            UnsupportedModel: it has pickled weights alone.
        """
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._file_of: dict[str, str] = {}
        for file in _weight_files(folder):
            path = folder / file
            try:
                opened = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
                names = list(opened.keys())
            except FileNotFoundError as error:
                raise CorruptModel(
                    f"{folder} lacks the weight file {file}; fetch the model again"
                ) from error
            except (OSError, SafetensorError) as error:
                raise CorruptModel(
                    f"{path} is not a whole safetensors file ({error}); fetch the model again"
                ) from error
            self._files[file] = opened
            self._file_of.update(dict.fromkeys(names, file))

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def read(self, name: str, shape: tuple[int, ...], dtypes: Collection[str] = _FLOATS) -> Tensor:
        """The tensor, perhaps still in the mapped file.

        Raises:
            CorruptModel: it is missing or of another shape, or cannot be read.
            UnsupportedModel: it is stored in a number format that the engine does not read.
        """
        file = self._file_of.get(name)
        if file is None:
            raise CorruptModel(
                f"tensor {name} is missing from {self._folder}; fetch the model again"
            )
        path = self._folder / file
        try:
            header = self._files[file].get_slice(name)
            found, stored = tuple(header.get_shape()), header.get_dtype()
            if found != shape:
                raise CorruptModel(
                    f"{path}: tensor {name} has shape {list(found)} where config.json asks for"
                    f" {list(shape)}; fetch the model again"
                )
            if stored not in dtypes:
                raise UnsupportedModel(
                    f"{path}: tensor {name} is stored as {stored}, which is not supported;"
                    f" the engine reads {', '.join(dtypes)}"
                )
            tensor: Tensor = self._files[file].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CorruptModel(
                f"{path}: tensor {name} cannot be read ({error}); fetch the model again"
            ) from error
        return tensor

    def refuse_unknown(self, known: Collection[str], model: str) -> None:
        """Raises UnsupportedModel if a tensor would be ignored; `model` says what was expected."""
        for name, file in self._file_of.items():
            if name not in known and not name.endswith(_DERIVED):
                raise UnsupportedModel(
                    f"{self._folder / file}: tensor {name!r} is no part of {model}"
                    " as config.json describes it"
                )


def _weight_files(folder: Path) -> list[str]:
    index = folder / _INDEX
    if index.is_file():
        try:
            files = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptModel(
                f"{index} does not say which file holds which tensor; fetch the model again"
            ) from error
        for file in files:
            # An index is a stranger's: it may not point outside its own folder.
            if not isinstance(file, str) or Path(file).name != file:
                raise CorruptModel(f"{index} names the file {file!r}, which is not in its folder")
        return files
    if (folder / _SINGLE).is_file():
        return [_SINGLE]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise UnsupportedModel(
            f"{folder} holds pickled weights only, which can run code when opened and are refused;"
            f" convert them to {_SINGLE}"
        )
    raise UnknownModel(f"{folder} holds no {_SINGLE} and no {_INDEX}; fetch the model again")
