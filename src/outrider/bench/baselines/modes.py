"""Which processes and modes a comparison holds: data, read from a TOML file.

`modes.toml` beside this module is the default and says what the fields mean.
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from outrider.bench.baselines.peers import PEERS
from outrider.errors import ConfigError

__all__ = ["DEFAULT_MODES", "Comparison", "Mode", "Process", "fill", "load_modes"]

DEFAULT_MODES: Final = Path(__file__).with_name("modes.toml")


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A peer started with options of its own; see modes.toml."""

    peer: str
    memory_gb: float
    arguments: tuple[str, ...] = ()


class Mode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way to ask a process; see modes.toml."""

    process: str
    request: dict[str, Any] = {}
    plain: str | None = None
    anchor: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    processes: dict[str, Process]
    modes: dict[str, Mode]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Modes by name, in the file's order, and the processes that they need."""

    processes: Mapping[str, Process]
    modes: Mapping[str, Mode]

    @property
    def peers(self) -> list[str]:
        return list(dict.fromkeys(process.peer for process in self.processes.values()))


def load_modes(file: Path, wanted: Sequence[str] = ()) -> Comparison:
    """The modes of a file, or of these those whose name contains one of `wanted`, in any case.

    Raises:
        ConfigError: the file cannot be read, names what it does not hold, or holds nothing wanted.
    """
    try:
        whole = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _File)
    except OSError as error:
        raise ConfigError(f"cannot read the modes file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ConfigError(f"the modes file {file} has no meaning: {error}") from error
    for name, process in whole.processes.items():
        if process.peer not in PEERS:
            known = ", ".join(PEERS)
            raise ConfigError(f"process {name} has the peer {process.peer!r}; known are {known}")
    for name, mode in whole.modes.items():
        if mode.process not in whole.processes:
            raise ConfigError(f"mode {name} has the process {mode.process!r}, which {file} lacks")
        if mode.plain is not None and mode.plain not in whole.modes:
            raise ConfigError(f"mode {name} repeats {mode.plain!r}, a mode that {file} lacks")
    modes = {
        name: mode
        for name, mode in whole.modes.items()
        if not wanted or any(part.lower() in name.lower() for part in wanted)
    }
    if not modes:
        raise ConfigError(
            f"no mode of {file} has {' or '.join(wanted)} in its name; there are "
            f"{', '.join(whole.modes)}"
        )
    needed = {mode.process for mode in modes.values()}
    processes = {name: process for name, process in whole.processes.items() if name in needed}
    return Comparison(processes, modes)


def fill(value: Any, values: Mapping[str, str]) -> Any:
    """`value` with each `$name` in its texts replaced. Raises `ConfigError` for one not known."""
    if isinstance(value, str):
        try:
            return string.Template(value).substitute(values)
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"{value!r} names something that this run does not have ({error}); known are "
                f"{', '.join(f'${name}' for name in sorted(values))}"
            ) from error
    if isinstance(value, Mapping):
        return {name: fill(part, values) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [fill(part, values) for part in value]
    return value
