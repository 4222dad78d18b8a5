"""What keeps a checkpoint from being exported: another target, broken weights, a missing end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from outrider.errors import CorruptModel, TrainingError
from outrider.models import TextAssets
from outrider.train.plan import Target
from outrider.train.sources import check_sources, digest_data
from outrider.train.store import Part, read_examples

__all__ = ["check_origin", "check_vocabulary", "check_weights", "read_run"]

I64 = npt.NDArray[np.int64]

_RUN: Final = "run.json"


def read_run(checkpoint: Path) -> dict[str, Any]:
    """What the run says of itself; empty for a draft that no run wrote.

    Raises:
        CorruptModel: it cannot be read.
    """
    path = checkpoint / _RUN
    if not path.exists():
        return {}
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(run["begun"], dict) or not isinstance(run["step"], int):
            raise TypeError("it does not say how it was begun, or its step")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptModel(f"{path} cannot be read ({error}); use another checkpoint") from error
    return dict(run)


def check_origin(
    run: dict[str, Any], checkpoint: Path, target: Target, data: Sequence[Path]
) -> None:
    """See to it that a draft was trained for `target`, on `data` if that is given.

    Args:
        run: of `read_run`.

    Raises:
        TrainingError: it was not.
        CorruptData: the data cannot be read.
    """
    begun = run.get("begun", {})
    trained_for = begun.get("target", target.model_hash)
    if trained_for != target.model_hash:
        raise TrainingError(
            f"{checkpoint} was trained for a target of the hash {str(trained_for)[:12]}, and "
            f"{target.model_id} ({target.dtype}) has {target.model_hash[:12]}; give the same "
            "--target and --dtype as it was trained for"
        )
    if not data:
        return
    folders = [read_examples(each, Part.TRAIN) for each in data]
    check_sources([each.source for each in folders], data, target)
    if begun.get("data", digest := digest_data(folders)) != digest:
        raise TrainingError(
            f"{checkpoint} was trained on other data than {', '.join(map(str, data))}; give "
            "the folders that it was trained on, in the same order, or no --data"
        )


def check_weights(model: PreTrainedModel, checkpoint: Path) -> None:
    """Raises TrainingError if a weight is not finite; names the tensor."""
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise TrainingError(
                f"{checkpoint}: {name} holds numbers that are not finite; export an earlier "
                "checkpoint, and train on from it with a lower --learning-rate"
            )


def check_vocabulary(
    model: PreTrainedModel,
    target_ids: I64 | None,
    target: Target,
    assets: TextAssets,
    checkpoint: Path,
) -> None:
    """See to it that a draft's ids lead to the target's.

    Raises:
        TrainingError: they lead elsewhere, or not to all that end the target's outputs.
    """
    rows, known = model.config.vocab_size, target.tokenizer.vocab_size
    another = f"export it with the target that it was made for, not {target.model_id}"
    if target_ids is None:
        if rows < known:
            raise TrainingError(
                f"{checkpoint} has {rows} ids and no map to the target's, whose tokenizer knows "
                f"{known}; {another}"
            )
        return
    if target_ids.size != rows:
        raise TrainingError(
            f"{checkpoint} has {rows} ids, and a map for {target_ids.size}; use another checkpoint"
        )
    if target_ids[-1] >= known:
        raise TrainingError(
            f"{checkpoint} has token {target_ids[-1]} of its target, and the tokenizer of "
            f"{target.model_id} knows {known}; {another}"
        )
    ends = {each for each in assets.eos_token_ids if each < known}
    if missing := sorted(ends - set(target_ids.tolist())):
        names = ", ".join(f"{each} {target.tokenizer.token_strings[each]!r}" for each in missing)
        raise TrainingError(
            f"{checkpoint} lacks tokens that end the target's outputs ({names}), and would draft "
            "past every end; choose its vocabulary anew, with this target"
        )
