"""Settings: defaults < TOML file < environment < command line; validated, then frozen.

Environment variables are `OUTRIDER_<SECTION>__<NAME>`, for example `OUTRIDER_SERVER__PORT=9000`.
The cache folder is `OUTRIDER_HOME`.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from outrider.errors import ConfigError

__all__ = [
    "DEFAULT_TARGET",
    "EngineSettings",
    "LimitSettings",
    "ServerSettings",
    "Settings",
    "SpeculationSettings",
    "load_settings",
]

DEFAULT_TARGET = "smollm2-135m-q4_1"


def _split(value: object) -> object:
    """`a,b` from the environment or the command line is the list of both."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)  # its errors are ValueErrors, as validators raise them
    return [part.strip() for part in value.split(",")]


def _folder(value: object) -> object:
    """A folder as people write it: `~/x`; nothing at all is a mistake, not the current folder."""
    if isinstance(value, str) and not value.strip():
        raise ValueError("name a folder")
    return Path(value).expanduser().absolute() if isinstance(value, (str, Path)) else value


_UNITS = {
    "": 1,
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
}


def _size(value: object) -> object:
    """Bytes as people write them: `2GB`, `512 MiB`, `1.5GB`, `auto`."""
    if not isinstance(value, str):
        return value
    if value.strip().lower() == "auto":
        return 0
    number = value.strip().rstrip("BKMGTIbkmgti ")
    unit = value.strip()[len(number) :].strip().upper()
    if unit not in _UNITS or not number.replace(".", "", 1).isdecimal():
        raise ValueError("write a size as in 2GB, 512MB, 1.5GiB, or auto")
    return int(float(number) * _UNITS[unit])


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ServerSettings(_Section):
    """Where the gateway listens."""

    host: str = "127.0.0.1"
    """Address to bind; the default is reachable from this machine alone."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """TCP port; 0 lets the system choose."""
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """Seconds that running requests get to finish after SIGTERM or Ctrl-C."""


class EngineSettings(_Section):
    """What the models run on."""

    target: str = DEFAULT_TARGET
    """A known name, a folder, a GGUF file, a hub id, or table:FILE."""
    dtype: Literal["auto", "float32", "bfloat16", "int8", "int4"] = "auto"
    """What the weights are held in: int8; int4, the 4-bit weights of a GGUF file as they are and
    int8 for the rest; or plain floats. auto on a CPU takes int4 for a GGUF file, int8 for others,
    and bfloat16 on an accelerator."""
    device: str = "cpu"
    """A torch device, such as cpu or cuda."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Compute threads; 0 takes one per core."""
    max_sessions: Annotated[int, Field(ge=1, le=4096)] = 32
    """Sequences held by the target at a time."""
    max_context: Annotated[int, Field(ge=0)] = 0
    """Longest prompt plus output in tokens; 0 takes the model's own limit."""
    step_tokens: Annotated[int, Field(ge=16, le=65536)] = 128
    """Most tokens in one forward pass; a longer prompt is read in several, a quarter as long while
    other sequences run."""
    kv_memory: Annotated[int, Field(ge=0), BeforeValidator(_size)] = 0
    """Memory for keys and values of all sequences, such as 2GB or 512MiB: what runs waits for room
    in it, what has ended stays in the rest of it for prefix reuse. 0 or auto takes a quarter of
    what is available at the start, or less if that holds max_sessions of the longest length. A
    draft model gets room for as many tokens on top."""
    prefix_cache: bool = True
    """Keep the keys and values of sequences that have ended, for later ones of the same tenant that
    begin with the same tokens."""


class SpeculationSettings(_Section):
    """What is drafted, and how much."""

    drafts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ("ngram",)
    """Drafters, the first is the default: ngram, layers:N, self, table:FILE, a model, or none.
    Separated by commas, or a list."""
    controller: Literal["fixed", "window"] = "window"
    """How the lookahead is chosen."""
    lookahead: Annotated[int, Field(ge=0, le=64)] = 4
    """Tokens to draft at first (window), or always (fixed)."""
    min_lookahead: Annotated[int, Field(ge=0, le=64)] = 0
    """The window controller never goes below."""
    max_lookahead: Annotated[int, Field(ge=0, le=64)] = 16
    """Nothing goes above."""
    window: Annotated[int, Field(ge=1, le=1024)] = 8
    """Rounds that the window controller averages over."""
    verification: Literal["matching", "token", "block"] = "block"
    """How drafts are judged that a draft model of this process samples, without a seed: by the
    target's own sample, or by ratios of probabilities, per token or per block. All are lossless."""
    deadline_ms: Annotated[float, Field(gt=0, le=600_000)] = 2000.0
    """A draft that takes longer is given up; the target runs on alone."""

    @model_validator(mode="after")
    def _bounds(self) -> SpeculationSettings:
        if self.min_lookahead > self.max_lookahead:
            raise ValueError(
                f"min_lookahead is {self.min_lookahead}, above max_lookahead {self.max_lookahead}"
            )
        if self.lookahead > self.max_lookahead:
            raise ValueError(
                f"lookahead is {self.lookahead}, above max_lookahead {self.max_lookahead}"
            )
        if not all(self.drafts) or ("none" in self.drafts and len(self.drafts) > 1):
            raise ValueError(f"drafts is {', '.join(self.drafts)!r}; name drafters, or none alone")
        return self


class LimitSettings(_Section):
    """What a stranger may ask for."""

    max_running: Annotated[int, Field(ge=1, le=4096)] = 32
    """Choices decoded at a time; more wait in the queue."""
    max_queued: Annotated[int, Field(ge=0, le=100_000)] = 256
    """Requests that may wait; more are refused with 429."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 4 * 1024 * 1024
    """Largest request body."""
    max_choices: Annotated[int, Field(ge=1, le=128)] = 16
    """Largest `n`, and most prompts in one request."""
    default_max_tokens: Annotated[int, Field(ge=1)] = 256
    """Output budget of a request that names none."""
    max_logprobs: Annotated[int, Field(ge=0, le=1000)] = 20
    """Most likely tokens whose log probability a request may ask for at each output token."""
    max_logprob_entries: Annotated[int, Field(ge=1)] = 500_000
    """Log probabilities that one request may be answered with: choices times `max_tokens` times one
    more than the likely tokens asked for."""


class Settings(BaseSettings):
    """Everything that can be set, by section."""

    model_config = SettingsConfigDict(
        env_prefix="OUTRIDER_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )

    home: Annotated[Path, BeforeValidator(_folder)] = Field(
        default_factory=lambda: Path.home() / ".cache" / "outrider"
    )
    """Cache folder for models."""
    server: ServerSettings = ServerSettings()
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
