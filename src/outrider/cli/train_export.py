"""`outrider train export`: a trained draft as a folder that can be served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from outrider.cli import options
from outrider.cli.console import LogLevel, progress_bars, set_up_logs
from outrider.errors import ConfigError
from outrider.models.catalogue import find

if TYPE_CHECKING:
    from outrider.train.export import Exported

__all__ = ["export"]

_CARD = "Model card"


def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="The folder of a run of `outrider train distill`, whose best checkpoint is taken, "
            "or of one checkpoint.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="To be made; is served by its path.")
    ],
    weights: Annotated[
        str, typer.Option("--weights", help="bfloat16, or float32, which is twice as large.")
    ] = "bfloat16",
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="FOLDER",
            help="What it was trained on, in the same order; counted in the card.",
            rich_help_panel=_CARD,
        ),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="Where the prompts came from; the file's name goes into the card. May be given "
            "several times.",
            rich_help_panel=_CARD,
        ),
    ] = None,
    evaluation: Annotated[
        Path | None,
        typer.Option(
            "--evaluation",
            metavar="FILE.json",
            help="What `outrider train evaluate` wrote.",
            rich_help_panel=_CARD,
        ),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(
            "--license",
            help="SPDX identifier. Default: that of a target known by name, else none.",
            rich_help_panel=_CARD,
        ),
    ] = None,
    base_model: Annotated[
        list[str] | None,
        typer.Option(
            "--base-model",
            metavar="ID",
            help="What it was made from, such as org/name. May be given several times.",
            rich_help_panel=_CARD,
        ),
    ] = None,
    config: options.Config = None,
    target: options.Target = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
) -> None:
    """Write a trained draft as a folder that can be served.

    Give the target exactly as the draft was trained for it (the same --dtype).

      outrider train export runs/my-model --target my-model --data data/my-model \\
          --evaluation judged.json --out drafts/my-model
      outrider run --target my-model --draft drafts/my-model

    The folder gets its name only once the engine has read it and computes the logits that it was
    trained to.
    """
    from transformers.utils import logging  # noqa: PLC0415 # `outrider --help` loads no engine

    from outrider.train.export import Story, export_draft, find_checkpoint  # noqa: PLC0415 # as above
    from outrider.train.teacher_weights import find_target  # noqa: PLC0415 # as above

    set_up_logs(LogLevel.WARNING)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # has no types
    settings = options.build_settings(config, target=target, dtype=dtype, device=device)
    found = find_checkpoint(checkpoint)
    measures = {} if evaluation is None else _read(evaluation)
    with progress_bars() as loading:
        whose = find_target(settings, progress=loading)
    known = find(settings.engine.target)
    story = Story(
        data=tuple(data or ()),
        prompt_files=tuple(each.name for each in prompts or ()),
        measures=measures,
        licence=licence or (None if known is None else known.licence),
        base_models=tuple(base_model or ()),
    )
    exported = export_draft(found, whose, out, weights=weights, story=story)  # type: ignore[arg-type]  # it checks the name
    _report(exported, found, whose.model_id)


def _read(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--evaluation {file} cannot be read ({error}); name what `outrider train evaluate` "
            "wrote"
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(f"--evaluation {file} holds no JSON object; name another file")
    return values


def _report(exported: Exported, checkpoint: Path, target: str) -> None:
    record = exported.record
    of = f" of {record.target_vocab_size:,}" if record.trimmed else ""
    lines = (
        f"{exported.path}: {exported.parameters / 1e6:.1f}M parameters, "
        f"{record.vocab_size:,}{of} tokens, {exported.nbytes / 1e6:.1f} MB in {record.dtype}, "
        f"from {checkpoint.name}",
        f"read by the engine: logits within {exported.difference:.1e} of transformers'",
        f"serve it: outrider run --target {target} --draft {exported.path}",
    )
    console = Console(highlight=False)
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
