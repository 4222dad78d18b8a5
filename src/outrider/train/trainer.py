"""The loop: transformers' Trainer with our loss, our order of the data, and our checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_model
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from outrider.errors import CorruptData, TrainingError
from outrider.models import write_draft_vocabulary
from outrider.train.batches import Batch, Corpus
from outrider.train.checkpoint import Best, Checkpoints
from outrider.train.draft_loss import COUNTS, DraftLoss
from outrider.train.estimate import LOOKAHEAD, Estimate, Totals, measure
from outrider.train.loss_plot import draw_losses
from outrider.train.order import epoch_parts
from outrider.train.parts import Parts
from outrider.train.plan import Rhythm
from outrider.train.progress import Journal, Watch
from outrider.train.settings import DistilSettings

__all__ = ["Distiller"]

I64 = npt.NDArray[np.int64]

_WEIGHTS: Final = "model.safetensors"


class Distiller(Trainer):
    """Trains a draft.

    Attributes:
        module: the draft and its loss.
        best: the step that did best on held-out data, so far.
        interrupted: whether the run was asked to end, and did.
    """

    loss_is_scaled_for_ga = True  # by the tokens of the whole step

    def __init__(
        self,
        module: DraftLoss,
        args: TrainingArguments,
        parts: Parts,
        *,
        settings: DistilSettings,
        rhythm: Rhythm,
        checkpoints: Checkpoints,
        begun: Mapping[str, object],
        target_ids: I64 | None = None,
        held_out: Corpus | None = None,
        best: Best | None = None,
        journal: Journal,
        watch: Watch,
        asked_to_end: Callable[[], bool] = lambda: False,
    ) -> None:
        """Args:
        begun: kept in every checkpoint, to be compared when a run goes on.
        target_ids: kept in every checkpoint, for a draft with ids of its own.
        asked_to_end: asked after every step.
        """
        super().__init__(
            model=module, args=args, train_dataset=parts, data_collator=_only, callbacks=[]
        )
        self.remove_callback(PrinterCallback)
        self.add_callback(_AfterStep(self, rhythm))
        self.module = module
        self.best, self.interrupted = best, False
        self._settings, self._parts = settings, parts
        self._checkpoints, self._begun, self._target_ids = checkpoints, begun, target_ids
        self._held_out, self._journal, self._watch = held_out, journal, watch
        self._asked_to_end = asked_to_end
        self._run_dir = checkpoints.unfinished
        self._counts = torch.zeros(len(COUNTS), dtype=torch.float64)
        self._reported_at = 0
        self._reported_when = time.perf_counter()
        self._grad_norm = 0.0

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """The share of one part in the step's loss."""
        loss, counts = model(inputs, num_items_in_batch)
        self._counts += counts
        # Gradients are averaged over processes, and the sum is wanted.
        scaled: Tensor = loss * self.accelerator.num_processes
        return scaled

    def evaluate(self, *_: object, **__: object) -> dict[str, float]:
        """Look at held-out data, write down what is seen, and ask for a checkpoint if it is best.

        Raises:
            TrainingError: there is no held-out data.
        """
        if self._held_out is None:
            raise TrainingError("there is no held-out data to look at")
        began = time.perf_counter()
        estimate = self.estimate(self._held_out)
        self._reported_when += time.perf_counter() - began
        step = self.state.global_step
        better = self.best is None or estimate.acceptance > self.best.acceptance
        # What training begins with is a measure, not a result.
        if better and step > 0:
            self.best = Best(step, estimate.acceptance)
            self.control.should_save = True
        values = estimate.values()
        entry = {"step": step, "held_out": {**values, "lookahead": LOOKAHEAD}}
        if self.is_world_process_zero():
            self._journal.add(entry)
            self._watch.held_out(entry, best=better and step > 0)
        self.control.should_evaluate = False
        return {f"eval_{name}": value for name, value in values.items()}

    def estimate(self, corpus: Corpus) -> Estimate:
        """How the draft, as it is, does on conversations that it is not trained on."""
        module = self.module
        was_training = module.training
        module.eval()
        totals = Totals()
        order = epoch_parts(corpus.lengths, corpus.useful, self._settings.part_tokens, 0, 0)
        for index, places in enumerate(order):
            if index % self.accelerator.num_processes == self.accelerator.process_index:
                items = [corpus[int(place)] for place in places]
                with self.accelerator.autocast():
                    temperature = self._settings.loss.teacher_temperature
                    measure(module, items, temperature, self.args.device, totals)
        module.train(was_training)
        return Totals(self._over_processes(totals.sums)).estimate()

    def report(self) -> None:
        """Write down how the steps since the last report went."""
        step = self.state.global_step
        counts = dict(zip(COUNTS, self._over_processes(self._counts).tolist(), strict=True))
        self._counts.zero_()
        now = time.perf_counter()
        seconds, steps = now - self._reported_when, step - self._reported_at
        self._reported_when, self._reported_at = now, step
        tokens = max(counts["tokens"], 1)
        entry = {
            "step": step,
            "epoch": round(self._settings.epochs * step / self.state.max_steps, 4),
            "loss": counts["loss"] / max(steps, 1),
            "acceptance": counts["acceptance"] / tokens,
            "acceptance_most": counts["acceptance_most"] / tokens,
            "agreement": counts["agreements"] / tokens,
            "cross_entropy": counts["cross_entropy"] / max(counts["labelled"], 1),
            "learning_rate": self._get_learning_rate(),
            "grad_norm": self._grad_norm,
            "tokens": int(counts["tokens"]),
            "tokens_per_s": counts["tokens"] / seconds,
        }
        if self.is_world_process_zero():
            self._journal.add(entry)
            self._watch.trained(entry)

    @property
    def looks_at_held_out(self) -> bool:
        return self._held_out is not None

    def ended_early(self) -> bool:
        """Whether any process of the run was asked to end, with steps left."""
        asked = self._over_processes(torch.tensor([float(self._asked_to_end())]))
        self.interrupted = bool(asked.item()) and self.state.global_step < self.state.max_steps
        return self.interrupted

    def begin_at(self, step: int) -> None:
        """Count speed and loss from here."""
        self._reported_at, self._reported_when = step, time.perf_counter()

    def shown(self, step: int) -> None:
        self._watch.step(step)

    def _over_processes(self, values: Tensor) -> Tensor:
        if self.accelerator.num_processes == 1:
            return values.clone()
        total: Tensor = self.accelerator.reduce(values.to(self.args.device), "sum")
        return total.cpu()

    def _get_train_sampler(self, *_: object) -> SequentialSampler:
        return SequentialSampler(self._parts)

    def _get_num_items_in_batch(self, batch_samples: list[Batch], device: torch.device) -> Tensor:
        tokens = torch.tensor([float(sum(len(each["labels"]) for each in batch_samples))])
        return self._over_processes(tokens).to(device).squeeze(0)

    def _clip_grad_norm(self, model: torch.nn.Module) -> Tensor:
        norm: Tensor = super()._clip_grad_norm(model)  # type: ignore[no-untyped-call]  # has no types
        self._grad_norm = float(norm)
        if not math.isfinite(self._grad_norm):
            step = self.state.global_step + 1
            last = list(self._checkpoints.steps())[-1:]
            kept = f"the checkpoint of step {last[0]} is as it was" if last else "nothing was saved"
            raise TrainingError(
                f"loss or gradient of step {step} is not finite ({self._grad_norm}); {kept}: begin "
                "anew with a lower --learning-rate, or another --loss"
            )
        return norm

    def _get_output_dir(self, trial: object) -> str:
        return str(self._run_dir)

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        step = self.state.global_step
        first = self.is_world_process_zero()
        began = time.perf_counter()
        with self._checkpoints.writing(first=first) as folder:
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if first:
                written = folder / f"checkpoint-{step}"
                self._checkpoints.finish(written, step, self._begun, self.best)
                draw_losses(self._journal.entries(), self._journal.path.with_name("loss.svg"))
        self.accelerator.wait_for_everyone()
        self._reported_when += time.perf_counter() - began

    def _save(self, output_dir: str | None = None, state_dict: object = None) -> None:
        folder = Path(output_dir or self._run_dir)
        self.module.draft.save_pretrained(folder)
        if self._target_ids is not None:
            write_draft_vocabulary(folder, self._target_ids)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: object = None) -> None:
        path = Path(resume_from_checkpoint) / _WEIGHTS
        try:
            load_model(self.module.draft, path)
        except (OSError, ValueError, RuntimeError) as error:
            words = " ".join(str(error).split())
            raise CorruptData(
                f"{path} cannot be read ({words}); remove its folder to go on from the one before"
            ) from error


class _AfterStep(TrainerCallback):
    """Decides after every step what is due."""

    def __init__(self, distiller: Distiller, rhythm: Rhythm) -> None:
        self._distiller, self._rhythm = distiller, rhythm

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._distiller.begin_at(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        step = state.global_step
        last = step >= state.max_steps
        ending = self._distiller.ended_early()
        self._distiller.shown(step)
        if step % self._rhythm.report == 0 or last or ending:
            self._distiller.report()
        looks = self._distiller.looks_at_held_out
        control.should_evaluate = looks and (step % self._rhythm.evaluate == 0 or last)
        control.should_save = step % self._rhythm.save == 0 or last or ending
        control.should_training_stop = last or ending
        return control


def _only(batches: list[Batch]) -> Batch:
    (batch,) = batches
    return batch
