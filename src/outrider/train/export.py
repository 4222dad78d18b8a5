"""From a checkpoint to a folder that can be served: whole, checked, and under its name or not at
all."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from outrider.engine import Chunk, load_model
from outrider.errors import ConfigError, TrainingError
from outrider.models import TextAssets, load_text_assets, write_draft_vocabulary
from outrider.train.card import Record, describe_data, write_card
from outrider.train.card_measures import check_measures
from outrider.train.checkpoint import Checkpoints
from outrider.train.distil import load_draft
from outrider.train.export_checks import check_origin, check_vocabulary, check_weights, read_run
from outrider.train.plan import Target
from outrider.train.store import Part, read_examples

__all__ = ["Exported", "Story", "Weights", "export_draft", "find_checkpoint"]

I64 = npt.NDArray[np.int64]

Weights = Literal["bfloat16", "float32"]

_TEXT_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_GENERATION: Final = "generation_config.json"
_CHECKED_TOKENS: Final = 24
_TOLERANCE: Final = 1e-3  # of the largest logit: both compute in float32, in another order


@dataclass(frozen=True, slots=True)
class Story:
    """What a card tells beside what the checkpoint says itself.

    Attributes:
        data: folders that the draft was trained on, in the order in which they were given.
        prompt_files: names of the files that the prompts are from.
        measures: what `outrider train evaluate` wrote.
        licence: an SPDX identifier.
        base_models: ids of models that the draft was made from.
    """

    data: tuple[Path, ...] = ()
    prompt_files: tuple[str, ...] = ()
    measures: Mapping[str, Any] = field(default_factory=dict)
    licence: str | None = None
    base_models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exported:
    """A folder that was written.

    Attributes:
        path: of the folder.
        parameters: how many numbers the draft has.
        nbytes: size of its weights.
        difference: the largest difference of a logit, in the engine and in transformers.
        record: what its card tells.
    """

    path: Path
    parameters: int
    nbytes: int
    difference: float
    record: Record


def find_checkpoint(path: Path) -> Path:
    """The checkpoint in `path`, or of the run in `path`: its best one, else its last.

    Raises:
        TrainingError: there is none.
    """
    if (path / "config.json").is_file():
        return path.resolve()
    best = path / "best"
    if (best / "config.json").is_file():
        return best.resolve()
    if found := list(Checkpoints(path).steps().values()):
        return found[-1].resolve()
    raise TrainingError(
        f"{path} holds no checkpoint; name a folder of `outrider train distill`, or one of its "
        "checkpoints"
    )


def export_draft(
    checkpoint: Path,
    target: Target,
    out: Path,
    *,
    weights: Weights = "bfloat16",
    story: Story | None = None,
) -> Exported:
    """Write the draft in `checkpoint` as a folder that the engine serves.

    What is written is read again by the engine, and its logits are compared with transformers'
    before the folder gets its name.

    Args:
        checkpoint: as `find_checkpoint` gives it.
        target: what the draft was trained for; its tokenizer goes with the draft.
        out: the folder to make. It must not be there, or be empty.
        weights: type that the weights are written in.

    Raises:
        ConfigError: `out` is there, `weights` is unknown, or the measures are of another target.
        CorruptModel: the checkpoint cannot be read.
        TrainingError: the checkpoint was trained for another target or on other data, its weights
            are not finite, its vocabulary lacks an end, or the folder cannot be written.
        UnsupportedModel: the engine does not run such a model.
    """
    if weights not in get_args(Weights):
        raise ConfigError(f"weights {weights!r} are none of {', '.join(get_args(Weights))}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already; give another --out, or remove it")
    story = story or Story()
    if story.measures:
        check_measures(story.measures, target.model_hash)
    run = read_run(checkpoint)
    check_origin(run, checkpoint, target, story.data)
    draft = load_draft(checkpoint)
    assets = load_text_assets(target.folder)
    model = draft.model.eval()
    _round(model, getattr(torch, weights))
    check_weights(model, checkpoint)
    check_vocabulary(model, draft.target_ids, target, assets, checkpoint)
    record = _record(out.name, model, draft.target_ids, target, weights, run, story)
    with _staging(out) as folder:
        copy.deepcopy(model).to(getattr(torch, weights)).save_pretrained(folder)
        _write_text(folder, target.folder, assets)
        if draft.target_ids is not None:
            write_draft_vocabulary(folder, draft.target_ids)
        write_card(folder, record)
        difference = _compare(folder, model)
        _let_read(folder)
        nbytes = sum(each.stat().st_size for each in folder.glob("model*.safetensors"))
    return Exported(out, record.parameters, nbytes, difference, record)


def _record(
    name: str,
    model: PreTrainedModel,
    target_ids: I64 | None,
    target: Target,
    weights: str,
    run: dict[str, Any],
    story: Story,
) -> Record:
    recipe = {key: value for key, value in run.get("begun", {}).items() if key != "target"}
    if run:
        recipe["steps"] = run["step"]
    return Record(
        name=name,
        target_id=target.model_id,
        target_hash=target.model_hash,
        target_dtype=target.dtype,
        vocab_fingerprint=target.vocab_fingerprint,
        vocab_size=model.config.vocab_size,
        target_vocab_size=target.tokenizer.vocab_size,
        parameters=sum(each.numel() for each in model.parameters()),
        dtype=weights,
        trimmed=target_ids is not None,
        prompt_files=story.prompt_files,
        data=tuple(describe_data(read_examples(each, Part.ALL)) for each in story.data),
        recipe=recipe,
        measures=story.measures,
        licence=story.licence,
        base_models=story.base_models,
    )


@torch.no_grad()
def _round(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Give the weights the values that `dtype` has for them. They stay in float32, and so do the
    rotary frequencies, which `model.to` would round as well and no checkpoint holds."""
    for each in model.parameters():
        each.copy_(each.to(dtype))


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """A folder beside `out`, which becomes it if the block ends well."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            folder = place / "draft"  # with ordinary permissions: `place` is private
            folder.mkdir()
            yield folder
            folder.rename(out)
        finally:
            shutil.rmtree(place, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        words = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise TrainingError(
            f"cannot write {out}: {words}; remedy that (is the disk full?) and export again"
        ) from error


def _write_text(folder: Path, target: Path, assets: TextAssets) -> None:
    for name in _TEXT_FILES:
        if (target / name).is_file():
            shutil.copyfile(target / name, folder / name)
    # A draft's config.json counts in its own ids, so what ends an output is said here alone.
    said = target / _GENERATION
    generation = json.loads(said.read_text(encoding="utf-8")) if said.is_file() else {}
    generation["eos_token_id"] = sorted(assets.eos_token_ids)
    (folder / _GENERATION).write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


def _let_read(folder: Path) -> None:
    """Give all files the permissions of one: the library writes weights for their owner alone."""
    mode = (folder / "config.json").stat().st_mode
    for each in folder.iterdir():
        each.chmod(mode)


@torch.no_grad()
def _compare(folder: Path, model: PreTrainedModel) -> float:
    """The largest difference of a logit between the engine, on what was written, and `model`."""
    decoder = load_model(folder, dtype=torch.float32, device=torch.device("cpu"))
    size = decoder.config.vocab_size
    count = min(_CHECKED_TOKENS, decoder.config.context_length)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, size, (count,), generator=draw).tolist()
    ours = _engine_logits(decoder, tokens)
    theirs = model(torch.tensor([tokens])).logits[0].float()
    difference = float((ours - theirs).abs().max())
    most = _TOLERANCE * max(float(theirs.abs().max()), 1.0)
    if not difference <= most:
        raise TrainingError(
            f"the engine's logits of this draft differ from transformers' by {difference:.3g}, "
            f"where {most:.3g} is rounding; it cannot be served as it was trained"
        )
    return difference


def _engine_logits(decoder: Any, tokens: Sequence[int]) -> Tensor:
    cache = decoder.new_cache(num_slots=1, max_length=len(tokens))
    chunk = Chunk(cache.allocate(), list(tokens), len(tokens))
    (logits,) = decoder.forward([chunk], cache)
    found: Tensor = logits
    return found
