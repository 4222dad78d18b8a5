"""`outrider models`: the models known by name."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from outrider.cli.console import progress_bars
from outrider.cli.options import Config, Dtype
from outrider.config import load_settings
from outrider.models import CATALOGUE, resolve

__all__ = ["app"]

app = typer.Typer(help="The models known by name.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the models known by name."""
    table = Table("name", "size", "licence", "what it is", box=None, pad_edge=False)
    for entry in CATALOGUE:
        size = f"{entry.size / 1e6:,.0f} MB"
        table.add_row(entry.name, size, entry.licence, entry.description)
    Console().print(table)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="A known name, a hub id, or a GGUF file.")],
    config: Config = None,
    dtype: Dtype = None,
) -> None:
    """Fetch a model into the cache and make it ready to serve."""
    settings = load_settings(config, {"engine": {"dtype": dtype}})
    with progress_bars() as progress:
        folder = resolve(
            name,
            home=settings.home,
            dtype=settings.engine.dtype,
            device=settings.engine.device,
            progress=progress,
        )
    typer.echo(f"{folder.model_id} is ready in {folder.path}")
