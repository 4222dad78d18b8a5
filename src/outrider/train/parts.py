"""What a run does, step by step, in the form that transformers' Trainer takes."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import TrainingArguments

from outrider.errors import TrainingError
from outrider.train.batches import Batch, Corpus, collate
from outrider.train.order import schedule
from outrider.train.settings import DistilSettings

__all__ = ["Parts", "bfloat16_is_fast", "training_arguments"]


class Parts(Dataset[Batch]):
    """What goes through the draft at a time, for a whole run: element i is the run's part i."""

    def __init__(
        self, corpus: Corpus, settings: DistilSettings, parts_per_step: int, *, live: bool = False
    ) -> None:
        self._corpus, self._live = corpus, live
        self.parts = schedule(
            corpus.lengths,
            corpus.useful,
            epochs=settings.epochs,
            part_tokens=settings.part_tokens,
            parts_per_step=parts_per_step,
            seed=settings.seed,
        )
        self.parts_per_step = parts_per_step

    @property
    def num_steps(self) -> int:
        return len(self.parts) // self.parts_per_step

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: int) -> Batch:
        items = [self._corpus[int(place)] for place in self.parts[index]]
        return collate(items, live=self._live)


def training_arguments(
    out: Path, settings: DistilSettings, *, parts: Parts, processes: int, device: str, bf16: bool
) -> TrainingArguments:
    """transformers' form of the settings.

    Raises:
        TrainingError: the parts of a step cannot be shared evenly by the processes.
    """
    if parts.parts_per_step % processes:
        raise TrainingError(
            f"{parts.parts_per_step} parts to a step cannot be shared by {processes} processes; "
            "choose a --batch-tokens that is a multiple of --part-tokens times the processes"
        )
    on_cpu = device == "cpu"
    return TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=1,  # a part is a batch already
        gradient_accumulation_steps=parts.parts_per_step // processes,
        num_train_epochs=1,  # the parts are those of all epochs
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=round(settings.warmup * parts.num_steps),
        optim="adamw_torch",
        adam_beta2=0.95,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        bf16=bf16,
        seed=settings.seed,
        use_cpu=on_cpu,
        dataloader_pin_memory=not on_cpu,
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        eval_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def bfloat16_is_fast(device: str) -> bool:
    """Whether the forward pass should be in bfloat16 on `device`."""
    if device != "cpu":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    # Without instructions for it, a CPU is several times slower than in float32.
    known = torch.cpu
    return known._is_avx512_bf16_supported() or known._is_amx_tile_supported()  # noqa: SLF001 # torch has no public names for it
