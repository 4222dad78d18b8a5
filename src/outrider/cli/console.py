"""What the command line writes: messages, progress bars, logs, JSON files."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from outrider.config import Settings
from outrider.errors import ConfigError
from outrider.models import StageProgress
from outrider.pipeline import Pipeline, create_pipeline

__all__ = [
    "LogLevel",
    "check_writable",
    "complain",
    "load_pipeline",
    "progress_bars",
    "set_up_logs",
    "write_json",
]


class LogLevel(StrEnum):
    """What is logged: this and everything graver."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def complain(message: str) -> None:
    """One line on standard error."""
    line = escape(" ".join(message.split()))
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]outrider:[/] {line}")


@contextmanager
def progress_bars(*columns: ProgressColumn) -> Iterator[StageProgress]:
    """Bars on standard error, one per stage, gone when done; nothing where nobody watches.

    Args:
        columns: what stands behind each bar; by default what suits bytes.
    """
    bytes_columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *(columns or bytes_columns),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    tasks: dict[str, TaskID] = {}

    def show(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total)
        bars.update(tasks[what], completed=done, total=total)

    with bars:
        yield show


async def load_pipeline(settings: Settings) -> Pipeline:
    """Build target and drafters, showing on a terminal what takes so long."""
    with progress_bars() as progress:
        if sys.stderr.isatty():
            print(f"Loading {settings.engine.target} ...", file=sys.stderr)
        return await create_pipeline(settings, progress=progress)


def check_writable(file: Path) -> None:
    """Tell at once what would otherwise be told after an hour. Nothing is written yet."""
    if not file.parent.is_dir():
        raise ConfigError(f"cannot write {file}: there is no folder {file.parent}; make it first")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"cannot write {file}; name a file in a folder of yours with --json")


def write_json(file: Path, values: Mapping[str, Any]) -> None:
    """Write a report that was also printed. Raises `ConfigError`."""
    try:
        file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {file}: {error.strerror}; the report is above, and nowhere else"
        ) from None


class _Stderr:
    """Looks up `sys.stderr` at every write, so that a live display can step aside."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def set_up_logs(level: LogLevel) -> None:
    """Logs on standard error: for people on a terminal, JSON lines elsewhere."""
    # Otherwise whatever a stranger sends that is no HTTP would put a line here.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    renderer: Any = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not sys.stderr.isatty():
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=_Stderr()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
