"""The settings from their sources: defaults < TOML file < environment < command line."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from outrider.config.sections import (
    DraftServerSettings,
    EngineSettings,
    LimitSettings,
    PeerSettings,
    ServerSettings,
    SpeculationSettings,
    TargetServerSettings,
)
from outrider.config.values import folder
from outrider.errors import ConfigError

__all__ = ["Settings", "load_settings"]


class Settings(BaseSettings):
    """Everything that can be set, by section."""

    model_config = SettingsConfigDict(
        env_prefix="OUTRIDER_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )

    home: Annotated[Path, BeforeValidator(folder)] = Field(
        default_factory=lambda: Path.home() / ".cache" / "outrider"
    )
    """Cache folder for models."""
    server: ServerSettings = ServerSettings()
    draft_server: DraftServerSettings = DraftServerSettings()
    target_server: TargetServerSettings = TargetServerSettings()
    peers: PeerSettings = PeerSettings()
    engine: EngineSettings = EngineSettings()
    speculation: SpeculationSettings = SpeculationSettings()
    limits: LimitSettings = LimitSettings()


def load_settings(
    file: Path | None = None, overrides: Mapping[str, Mapping[str, Any]] | None = None
) -> Settings:
    """Build the settings.

    Args:
        file: a TOML file with the sections of `Settings`.
        overrides: values from the command line, by section and name; None values count as not
            given.

    Raises:
        ConfigError: a value has no meaning; the message names it, where it came from and what
            would do.
    """
    given = {
        section: values
        for section, pairs in (overrides or {}).items()
        if (values := {name: value for name, value in pairs.items() if value is not None})
    }
    from_file = {} if file is None else _read_toml(file)
    _check_environment()

    class FromFile(Settings):
        """The same settings, with the file as the lowest source."""

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, from_file)

    try:
        return FromFile(**given)  # type: ignore[arg-type]  # pydantic-settings types its own options
    except ValidationError as error:
        raise ConfigError(_explain(error, given, from_file, file)) from None
    except SettingsError as error:
        raise ConfigError(f"an OUTRIDER_ environment variable cannot be read: {error}") from None


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {file}; check --config") from None
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    for section in _sections():
        if not isinstance(values.get(section, {}), dict):
            raise ConfigError(
                f"{section} is {values[section]!r} (from {file}); write its settings under "
                f"[{section}]"
            )
    return values


def _check_environment() -> None:
    """A misspelt variable must not be ignored in silence."""
    for variable in os.environ:
        name, _, setting = variable.upper().removeprefix("OUTRIDER_").lower().partition("__")
        known = (name == "home" and not setting) or name in _sections()
        if variable.upper().startswith("OUTRIDER_") and not known:
            raise ConfigError(
                f"environment variable {variable} means nothing; known are OUTRIDER_HOME and "
                f"OUTRIDER_<SECTION>__<NAME> with a section of {', '.join(_sections())}"
            )


def _sections() -> list[str]:
    return [name for name in Settings.model_fields if name != "home"]


def _explain(
    error: ValidationError,
    given: Mapping[str, Any],
    from_file: Mapping[str, Any],
    file: Path | None,
) -> str:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    name = ".".join(path)
    origin = "the defaults"
    if _holds(given, path):
        origin = "the command line"
    elif (variable := _variable_of(path)) is not None:
        origin = variable
    elif _holds(from_file, path):
        origin = str(file)
    if first["type"] == "extra_forbidden":
        return f"there is no setting {name} (from {origin}); `outrider config show` lists them all"
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if len(path) == 1 and path[0] in _sections():  # several of its settings do not go together
        return f"in {name}, {message}"
    return f"{name} is {first['input']!r} (from {origin}): {message}"


def _variable_of(path: list[str]) -> str | None:
    """The environment variable that sets what lies at `path`."""
    wanted = f"OUTRIDER_{'__'.join(path[:2])}".upper()
    for variable in os.environ:
        if variable.upper() == wanted or variable.upper().startswith(f"{wanted}__"):
            return variable
    return None


def _holds(source: Mapping[str, Any], path: list[str]) -> bool:
    value: Any = source
    for part in path[:2]:
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True
