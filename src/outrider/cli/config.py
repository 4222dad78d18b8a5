"""`outrider config`: the settings in force."""

from __future__ import annotations

import tomli_w
import typer
from pydantic import BaseModel, SecretStr

from outrider.cli.options import Config
from outrider.config import Settings, load_settings

__all__ = ["app"]

app = typer.Typer(help="The settings in force.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The settings in force."""


@app.command()
def show(config: Config = None) -> None:
    """Print the settings in force as a commented TOML file, ready for --config."""
    typer.echo(_render(load_settings(config)), nl=False)


def _render(settings: Settings) -> str:
    lines = [f"# {_comment(Settings, 'home')}", _assign("home", str(settings.home))]
    for section in Settings.model_fields:
        values = getattr(settings, section)
        if not isinstance(values, BaseModel):
            continue
        lines += ["", f"[{section}]"]
        for name, value in values.model_dump(mode="json").items():
            line = _assign(name, "" if value is None else value)
            if isinstance(getattr(values, name), SecretStr) and value:
                line = f"# {name} is set, and not shown"
            lines += [f"# {_comment(type(values), name)}", line]
    return "\n".join(lines) + "\n"


def _comment(model: type[BaseModel], name: str) -> str:
    return " ".join((model.model_fields[name].description or name).split())


def _assign(name: str, value: object) -> str:
    return tomli_w.dumps({name: value}, multiline_strings=False).strip().replace("\n", " ")
