"""`outrider train distill`: a draft model that says what the target says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from outrider.cli import options
from outrider.cli.console import LogLevel, complain, progress_bars, set_up_logs
from outrider.config import Settings

if TYPE_CHECKING:
    from outrider.train.first_draft import Origin
    from outrider.train.plan import Outcome, Plan, Rhythm
    from outrider.train.settings import DistilSettings

__all__ = ["distill"]

_FIRST = "The first draft"
_LOSS = "Loss"
_TRAINING = "Training"
_RUN = "The run"
_INTERRUPTED = 130


def distill(
    data: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER", help="Of `outrider train data`; one or more."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FOLDER", help="Gets checkpoints and the draft; goes on where it ends."
        ),
    ],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="A smaller model of the target's family, or a draft made before.",
            rich_help_panel=_FIRST,
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers",
            help="So many layers of it, or of the target itself (default: 4), evenly spread, or "
            "which ones: 0,1,29.",
            rich_help_panel=_FIRST,
        ),
    ] = None,
    scratch: Annotated[
        str | None,
        typer.Option(
            "--scratch",
            metavar="SIZES",
            help="Random numbers instead: hidden=256,layers=4,heads=4,kv_heads=4,intermediate=672; "
            "any may be left out.",
            rich_help_panel=_FIRST,
        ),
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            "--vocabulary",
            min=1,
            help="Keep so many of the target's tokens, those that it says most; the draft gets "
            "smaller and faster. Default: all of them.",
            rich_help_panel=_FIRST,
        ),
    ] = None,
    tied: Annotated[
        bool | None,
        typer.Option(
            "--tied/--untied",
            help="Whether its output head is its embedding. Default: as in the model it is of.",
            rich_help_panel=_FIRST,
        ),
    ] = None,
    loss: Annotated[
        str,
        typer.Option(
            "--loss",
            help="lk (KL that yields to acceptance), kl, reverse_kl, jsd, tv, log_alpha, ce or "
            "classic.",
            rich_help_panel=_LOSS,
        ),
    ] = "lk",
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature",
            min=0.0,
            help="That the draft will be served at. 1 is good for serving at 0 as well: its rows "
            "tell more than one choice each.",
            rich_help_panel=_LOSS,
        ),
    ] = 1.0,
    decay: Annotated[
        float,
        typer.Option(
            "--decay", help="Of lk: how fast acceptance takes over.", rich_help_panel=_LOSS
        ),
    ] = 3.0,
    alpha: Annotated[
        float,
        typer.Option("--alpha", help="Of classic: the share of KL.", rich_help_panel=_LOSS),
    ] = 0.5,
    kd_temperature: Annotated[
        float | None,
        typer.Option(
            "--kd-temperature", help="Of classic: KL's temperature.", rich_help_panel=_LOSS
        ),
    ] = None,
    teacher: Annotated[
        str,
        typer.Option(
            "--teacher",
            help="stored: the rows of the data. live: the target itself, in floating point.",
            rich_help_panel=_LOSS,
        ),
    ] = "stored",
    epochs: Annotated[
        float, typer.Option("--epochs", help="May be a fraction.", rich_help_panel=_TRAINING)
    ] = 3.0,
    learning_rate: Annotated[
        float,
        typer.Option(
            "--learning-rate",
            help="At its height; it rises over --warmup and falls to 0 as a cosine.",
            rich_help_panel=_TRAINING,
        ),
    ] = 5e-4,
    warmup: Annotated[
        float,
        typer.Option("--warmup", help="Share of all steps.", rich_help_panel=_TRAINING),
    ] = 0.05,
    weight_decay: Annotated[
        float, typer.Option("--weight-decay", rich_help_panel=_TRAINING)
    ] = 0.01,
    batch_tokens: Annotated[
        int,
        typer.Option(
            "--batch-tokens",
            help="Positions per optimizer step, over all processes.",
            rich_help_panel=_TRAINING,
        ),
    ] = 8192,
    part_tokens: Annotated[
        int,
        typer.Option(
            "--part-tokens",
            help="Positions per forward pass; less takes less memory.",
            rich_help_panel=_TRAINING,
        ),
    ] = 4096,
    max_length: Annotated[
        int,
        typer.Option(
            "--max-length",
            help="Conversations are cut behind so many tokens.",
            rich_help_panel=_TRAINING,
        ),
    ] = 1024,
    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            help="Of the forward pass: float32, bfloat16, or auto: bfloat16 where it is fast.",
            rich_help_panel=_TRAINING,
        ),
    ] = "auto",
    seed: Annotated[
        int, typer.Option("--seed", help="Fixes the order.", rich_help_panel=_TRAINING)
    ] = 0,
    holdout: Annotated[
        list[Path] | None,
        typer.Option(
            "--holdout",
            metavar="FOLDER",
            help="Data to judge by while training. Default: what the data itself holds out.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    report_every: Annotated[
        int, typer.Option("--report-every", min=1, help="Steps.", rich_help_panel=_RUN)
    ] = 10,
    evaluate_every: Annotated[
        int, typer.Option("--evaluate-every", min=1, help="Steps.", rich_help_panel=_RUN)
    ] = 100,
    save_every: Annotated[
        int, typer.Option("--save-every", min=1, help="Steps.", rich_help_panel=_RUN)
    ] = 100,
    keep: Annotated[
        int,
        typer.Option(
            "--keep",
            min=1,
            help="Checkpoints that stay, besides the best.",
            rich_help_panel=_RUN,
        ),
    ] = 2,
    config: options.Config = None,
    target: options.Target = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    threads: options.Threads = None,
) -> None:
    """Train a draft model on a target's answers.

    Give the target exactly as the data was made with it (the same --dtype).

      outrider train distill data/my-model --target my-model --layers 4 --vocabulary 8192 \\
          --out drafts/my-model

    Ctrl-C ends the run after the step at hand, with a checkpoint; the same command goes on there.
    A second Ctrl-C ends it at once. Under `accelerate launch -m outrider train distill ...` several
    processes share each step.

    Exit codes: 0 trained, 1 failed, 2 misused, 130 interrupted.
    """
    from outrider.train.first_draft import Origin  # noqa: PLC0415 # likewise
    from outrider.train.objective import LossSettings  # noqa: PLC0415 # likewise
    from outrider.train.plan import Plan, Rhythm  # noqa: PLC0415 # needs the extra's libraries
    from outrider.train.settings import DistilSettings  # noqa: PLC0415 # likewise

    set_up_logs(LogLevel.WARNING)
    settings = options.build_settings(
        config, target=target, dtype=dtype, device=device, threads=threads
    )
    how = DistilSettings(
        loss=LossSettings(loss, temperature, decay, alpha, kd_temperature),  # type: ignore[arg-type]  # it checks the name
        epochs=epochs,
        learning_rate=learning_rate,
        warmup=warmup,
        weight_decay=weight_decay,
        batch_tokens=batch_tokens,
        part_tokens=part_tokens,
        max_length=max_length,
        teacher=teacher,  # type: ignore[arg-type]  # likewise
        precision=precision,  # type: ignore[arg-type]  # likewise
        seed=seed,
    )
    origin = Origin(start, layers, scratch, vocabulary, tied, seed)
    plan = Plan(
        out=out,
        data=tuple(data),
        held_out=tuple(holdout or ()),
        origin=str(origin),
        keep=keep,
        device=settings.engine.device,
    )
    _run(settings, plan, how, origin, Rhythm(report_every, evaluate_every, save_every))


def _run(
    settings: Settings, plan: Plan, how: DistilSettings, origin: Origin, rhythm: Rhythm
) -> None:
    import torch  # noqa: PLC0415 # as above
    from transformers.utils import logging  # noqa: PLC0415 # as above

    from outrider.train.distil import distil  # noqa: PLC0415 # as above
    from outrider.train.export import Story, export_draft  # noqa: PLC0415 # as above
    from outrider.train.first_draft import start_draft  # noqa: PLC0415 # as above
    from outrider.train.interrupt import interruptible  # noqa: PLC0415 # as above
    from outrider.train.teacher_weights import find_target  # noqa: PLC0415 # as above

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # has no types
    spec = settings.engine.target
    if threads := settings.engine.threads:
        torch.set_num_threads(threads)
    with progress_bars() as loading:
        target = find_target(settings, live=how.teacher == "live", progress=loading)
    with interruptible(_told) as asked_to_end:
        outcome = distil(
            plan,
            target,
            how,
            lambda examples: start_draft(origin, spec, settings.home, target, examples),
            rhythm=rhythm,
            asked_to_end=asked_to_end,
        )
    if not outcome.first:
        return
    if outcome.interrupted:
        complain(
            f"stopped at step {outcome.step} of {outcome.steps}; the same command goes on from "
            f"there, with {plan.out} as it is"
        )
        raise typer.Exit(_INTERRUPTED)
    folder = plan.out / "draft"
    if folder.exists():  # of an earlier end of this run
        shutil.rmtree(folder)
    export_draft(outcome.checkpoint, target, folder, story=Story(data=plan.data))
    _report(outcome, folder)


def _told() -> None:
    complain("ending after this step, with a checkpoint; once more Ctrl-C ends at once")


def _report(outcome: Outcome, folder: Path) -> None:
    words = f"the draft of step {outcome.checkpoint.name.removeprefix('step-').lstrip('0')}"
    if outcome.best is not None:
        words += f", held-out acceptance {outcome.best.acceptance:.3f}"
    console = Console(highlight=False)
    console.print(f"{words}, is in {folder}", markup=False, soft_wrap=True)
    console.print(
        f"judge it before you serve it: outrider train evaluate --help, then --draft {folder}",
        markup=False,
        soft_wrap=True,
    )
