"""Which of the target's tokens a trimmed draft model has: one small file beside its weights.

A trimmed draft knows a few thousand of the target's tokens and numbers them anew. Its folder has
the target's tokenizer, and this file leads from its ids to the target's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from outrider.errors import CorruptModel

__all__ = ["DRAFT_VOCABULARY", "read_draft_vocabulary", "write_draft_vocabulary"]

DRAFT_VOCABULARY: Final = "draft_vocabulary.safetensors"
"""Name of the file."""

_TENSOR: Final = "target_ids"

I64 = npt.NDArray[np.int64]


def read_draft_vocabulary(folder: Path) -> I64 | None:
    """The target's id of each of a draft's ids, int64 of shape [V_draft], ascending.

    None if the model in `folder` is not trimmed.

    Raises:
        CorruptModel: the file is there, but is none such.
    """
    path = folder / DRAFT_VOCABULARY
    if not path.exists():
        return None
    from safetensors import SafetensorError  # noqa: PLC0415 # comes with the engine
    from safetensors.numpy import load_file  # noqa: PLC0415 # as above

    try:
        target_ids = load_file(path).get(_TENSOR)
    except (OSError, SafetensorError) as error:
        raise CorruptModel(f"{path} cannot be read ({error}); get the file anew") from error
    if target_ids is None or not _well_formed(target_ids):
        raise CorruptModel(
            f"{path} must hold {_TENSOR!r}, ids of the target as int64, ascending; export the "
            "draft again"
        )
    return target_ids


def write_draft_vocabulary(folder: Path, target_ids: I64) -> None:
    """Write what `read_draft_vocabulary` reads.

    Raises:
        ValueError: they are not of its form.
    """
    from safetensors.numpy import save_file  # noqa: PLC0415 # comes with the engine

    if not _well_formed(target_ids):
        raise ValueError("target_ids must be int64 of shape [V_draft], at least one, ascending")
    save_file({_TENSOR: np.ascontiguousarray(target_ids)}, folder / DRAFT_VOCABULARY)


def _well_formed(target_ids: npt.NDArray[np.generic]) -> bool:
    return bool(
        target_ids.ndim == 1
        and target_ids.dtype == np.int64
        and target_ids.size
        and target_ids[0] >= 0
        and (np.diff(target_ids) > 0).all()
    )
