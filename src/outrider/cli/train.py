"""`outrider train`: draft models for a target and its traffic."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

import typer

from outrider.cli.train_data import data
from outrider.cli.train_distill import distill
from outrider.cli.train_evaluate import evaluate
from outrider.cli.train_export import export
from outrider.errors import ConfigError

__all__ = ["app", "needs_extra"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_MODULES: Final = frozenset(
    {
        "accelerate",
        "gguf",
        "huggingface_hub",
        "matplotlib",
        "pyarrow",
        "safetensors",
        "torch",
        "transformers",
    }
)
"""What the extra brings, that of the engine included."""


def needs_extra(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """The command, which says how to get the libraries that it finds missing."""

    @wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in _MODULES:
                raise
            raise ConfigError(
                f"training needs the module {missing}, which is not installed; add it with "
                "pip install 'outrider[train]'"
            ) from None

    return run


app = typer.Typer(help="Draft models for a target and its traffic.", no_args_is_help=True)
app.command("data")(needs_extra(data))
app.command("distill")(needs_extra(distill))
app.command("evaluate")(needs_extra(evaluate))
app.command("export")(needs_extra(export))
