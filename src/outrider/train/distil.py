"""A whole run: from data and a first draft to a trained one, over as many interruptions as come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from accelerate import PartialState  # type: ignore[import-untyped]  # has no types
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from outrider.drafters.translation import Translation
from outrider.errors import CorruptData, TrainingError
from outrider.models import read_draft_vocabulary
from outrider.train.batches import Corpus, Reader
from outrider.train.checkpoint import Checkpoint, Checkpoints
from outrider.train.draft_loss import DraftLoss
from outrider.train.live_teacher import LiveTeacher
from outrider.train.parts import Parts, bfloat16_is_fast, training_arguments
from outrider.train.plan import DraftModel, Outcome, Plan, Rhythm, Target
from outrider.train.progress import Journal, Watch
from outrider.train.settings import DistilSettings, refuse_changes
from outrider.train.sources import check_sources, digest_data
from outrider.train.store import Examples, Part, Source, read_examples
from outrider.train.trainer import Distiller

__all__ = ["distil", "load_draft"]


def distil(
    plan: Plan,
    target: Target,
    settings: DistilSettings,
    make_draft: Callable[[Sequence[Examples]], DraftModel],
    *,
    rhythm: Rhythm | None = None,
    asked_to_end: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train a draft, or go on where an earlier run ended.

    On a CPU a run that was broken off and went on ends with the same bits as one that was not.

    Args:
        make_draft: makes the first draft out of the data to be trained on; not called by a run that
            goes on.
        asked_to_end: asked after every step.

    Raises:
        TrainingError: the data is of another target or empty, the run was begun with other
            settings, its loss is not finite, or a checkpoint cannot be written.
        CorruptData: data or a checkpoint cannot be read.
    """
    bars = transformers_logging.is_progress_bar_enabled()
    # A bar per checkpoint would tear ours apart.
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # has no types
    try:
        return _distil(plan, target, settings, make_draft, rhythm or Rhythm(), asked_to_end)
    finally:
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # as above


def _distil(
    plan: Plan,
    target: Target,
    settings: DistilSettings,
    make_draft: Callable[[Sequence[Examples]], DraftModel],
    rhythm: Rhythm,
    asked_to_end: Callable[[], bool],
) -> Outcome:
    state = PartialState(cpu=plan.device == "cpu")  # knows what `accelerate launch` says
    folders = [read_examples(each, Part.TRAIN) for each in plan.data]
    sources = [each.source for each in folders]
    check_sources(sources, plan.data, target)
    begun = {
        **settings.flat(),
        "target": target.model_hash,
        "data": digest_data(folders),
        "draft": plan.origin,
    }
    checkpoints = Checkpoints(plan.out, plan.keep)
    last = checkpoints.last()
    if last is not None:
        refuse_changes(last.begun, begun, str(plan.out))
    draft = make_draft(folders) if last is None else load_draft(last.path)

    reader = _reader(draft, target, sources[0], settings)
    corpus = Corpus(folders, reader, settings.max_length)
    held_out = _held_out(plan, reader, settings, target)
    live = settings.teacher == "live"
    per_step = max(round(settings.batch_tokens / settings.part_tokens), 1)
    per_step = -(-per_step // state.num_processes) * state.num_processes
    parts = Parts(corpus, settings, per_step, live=live)
    bf16 = settings.precision == "bfloat16" or (
        settings.precision == "auto" and bfloat16_is_fast(plan.device)
    )
    args = training_arguments(
        plan.out,
        settings,
        parts=parts,
        processes=state.num_processes,
        device=plan.device,
        bf16=bf16,
    )
    watch = Watch(parts.num_steps, last.step if last else 0, quiet=not state.is_main_process)
    journal = Journal(plan.out)
    if state.is_main_process:
        journal.begin(last.step if last else -1)
    distiller = Distiller(
        DraftLoss(
            draft.model.float(),
            settings.loss,
            target_ids=None if draft.target_ids is None else torch.from_numpy(draft.target_ids),
            vocab_size=sources[0].vocab_size,
            teacher=_teacher(target, args.device, bf16) if live else None,
        ),
        args,
        parts,
        settings=settings,
        rhythm=rhythm,
        checkpoints=checkpoints,
        begun=begun,
        target_ids=draft.target_ids,
        held_out=held_out,
        best=last.best if last else None,
        journal=journal,
        watch=watch,
        asked_to_end=asked_to_end,
    )
    if draft.note:
        watch.say(draft.note)
    watch.say(_introduction(distiller, corpus, held_out, parts, last))
    if last is None or last.step < parts.num_steps:
        with watch.showing():
            if last is None and held_out is not None:
                distiller.evaluate()
            distiller.train(resume_from_checkpoint=None if last is None else str(last.path))
    return _outcome(distiller, checkpoints, parts)


def load_draft(folder: Path) -> DraftModel:
    """The draft in a folder.

    Raises:
        CorruptData: it cannot be read.
    """
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 # seconds

    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        words = " ".join(str(error).split())
        raise CorruptData(
            f"the draft in {folder} cannot be read ({words}); if it is a run's checkpoint, remove "
            "it to go on from the one before"
        ) from error
    return DraftModel(model, read_draft_vocabulary(folder))


def _reader(draft: DraftModel, target: Target, source: Source, settings: DistilSettings) -> Reader:
    translation = None
    if draft.target_ids is not None:
        translation = Translation.trimmed(target.tokenizer, draft.target_ids)
    return Reader(
        translation,
        vocab_size=source.vocab_size,
        draft_size=draft.model.get_output_embeddings().weight.shape[0],
        temperature=settings.loss.teacher_temperature,
        max_length=settings.max_length,
    )


def _held_out(
    plan: Plan, reader: Reader, settings: DistilSettings, target: Target
) -> Corpus | None:
    given = [read_examples(each, Part.ALL) for each in plan.held_out]
    check_sources([each.source for each in given], plan.held_out, target)
    found = given or [read_examples(each, Part.HELD_OUT) for each in plan.data]
    if not any(int(each.num_generated.sum()) for each in found):
        return None
    return Corpus(found, reader, settings.max_length)


def _teacher(target: Target, device: torch.device, bf16: bool) -> LiveTeacher:
    if target.live_folder is None:
        raise TrainingError(f"{target.model_id} cannot be run as a live teacher; use stored rows")
    return LiveTeacher.load(target.live_folder, device, torch.bfloat16 if bf16 else torch.float32)


def _introduction(
    distiller: Distiller,
    corpus: Corpus,
    held_out: Corpus | None,
    parts: Parts,
    last: Checkpoint | None,
) -> str:
    size = sum(each.numel() for each in distiller.module.parameters())
    judged = f", {held_out.predicted} held out" if held_out else ", none held out"
    begins = f"goes on at step {last.step}" if last else "begins"
    return (
        f"a draft of {size / 1e6:.1f}M parameters {begins}: {len(corpus)} conversations, "
        f"{corpus.predicted} tokens of the target{judged}, {parts.num_steps} steps"
    )


def _outcome(distiller: Distiller, checkpoints: Checkpoints, parts: Parts) -> Outcome:
    found = checkpoints.steps()
    best = distiller.best
    step = max(found)
    return Outcome(
        step=step,
        steps=parts.num_steps,
        best=best,
        checkpoint=found[best.step if best is not None and best.step in found else step],
        interrupted=distiller.interrupted,
        first=distiller.is_world_process_zero(),
    )
