"""The commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from outrider import __version__
from outrider.cli import audit, bench, config, generate, models, run, serve, simulate, train
from outrider.cli.console import complain
from outrider.errors import OutriderError

__all__ = ["run_app"]

_FAILED = 1
_ENGINE_MODULES = ("gguf", "huggingface_hub", "safetensors", "torch")

app = typer.Typer(
    name="outrider",
    help="Lossless speculative decoding in front of any LLM, served over the OpenAI API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("generate")(generate.generate)
app.command("audit")(audit.audit)
app.command("bench")(bench.bench)
app.command("simulate")(simulate.simulate)
app.add_typer(serve.app, name="serve")
app.add_typer(train.app, name="train")
app.add_typer(models.app, name="models")
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outrider {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """Lossless speculative decoding in front of any LLM, served over the OpenAI API."""


def run_app() -> None:
    """Run the command line. Exit codes: 0 fine, 1 failed, 2 misused."""
    # gRPC's own log lines, such as those of a server that stops, are told in our words elsewhere.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        app()
    except OutriderError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name not in _ENGINE_MODULES:
            raise
        _fail(
            f"this install has no engine (there is no module {error.name}); "
            "add it with pip install 'outrider[engine]', or serve a table:FILE"
        )
    except BrokenPipeError:
        sys.exit(_FAILED)
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")


def _fail(message: str) -> NoReturn:
    complain(message)
    sys.exit(_FAILED)
