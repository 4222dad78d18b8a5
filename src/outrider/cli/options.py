"""Options that several commands share, and how they become settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import LogLevel
from outrider.config import Settings, load_settings

__all__ = [
    "Config",
    "Controller",
    "Device",
    "Draft",
    "Dtype",
    "Host",
    "KvMemory",
    "Log",
    "Lookahead",
    "MaxContext",
    "MaxLookahead",
    "MaxSessions",
    "Port",
    "RecordAcceptance",
    "Target",
    "Threads",
    "build_settings",
    "json_parameter",
]

_SERVER = "Server"
_MODEL = "Model"
_SPECULATION = "Speculation"

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file; `outrider config show` prints one."),
]
Host = Annotated[
    str | None, typer.Option("--host", help="Address to bind.", rich_help_panel=_SERVER)
]
Port = Annotated[
    int | None,
    typer.Option("--port", help="0 lets the system choose.", rich_help_panel=_SERVER),
]
Log = Annotated[LogLevel, typer.Option("--log-level", help="What goes to standard error.")]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="MODEL",
        help="A known name (`outrider models list`), a Hugging Face folder, a GGUF file, a hub id "
        "such as org/name, table:FILE, or target servers: grpc://HOST:PORT,...",
        rich_help_panel=_MODEL,
    ),
]
Draft = Annotated[
    list[str] | None,
    typer.Option(
        "--draft",
        metavar="DRAFTER",
        help="ngram or suffix (look up earlier text), layers:N (the target's first N layers), "
        "self, table:FILE, another model, a draft server's http://HOST:PORT, or none. May be given "
        "several times; the first is the default.",
        rich_help_panel=_SPECULATION,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="What the weights are held in: auto, int8, int4 (GGUF files), bfloat16, float32.",
        rich_help_panel=_MODEL,
    ),
]
Device = Annotated[
    str | None,
    typer.Option("--device", help="A torch device: cpu, cuda, ...", rich_help_panel=_MODEL),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", help="Compute threads; 0: one per core.", rich_help_panel=_MODEL),
]
MaxSessions = Annotated[
    int | None,
    typer.Option("--max-sessions", help="Sequences held at a time.", rich_help_panel=_MODEL),
]
MaxContext = Annotated[
    int | None,
    typer.Option(
        "--max-context",
        help="Longest prompt plus output, in tokens; 0: the model's own limit.",
        rich_help_panel=_MODEL,
    ),
]
KvMemory = Annotated[
    str | None,
    typer.Option(
        "--kv-memory",
        metavar="SIZE",
        help="Memory for keys and values of all sequences, such as 2GB; 0: a share of what is "
        "available.",
        rich_help_panel=_MODEL,
    ),
]
Controller = Annotated[
    str | None,
    typer.Option(
        "--controller",
        help="How the lookahead is chosen: goodput (by measured gain and cost), window (by "
        "acceptance) or fixed.",
        rich_help_panel=_SPECULATION,
    ),
]
Lookahead = Annotated[
    int | None,
    typer.Option(
        "--lookahead",
        help="Tokens drafted at first (window), or always (fixed).",
        rich_help_panel=_SPECULATION,
    ),
]
MaxLookahead = Annotated[
    int | None,
    typer.Option(
        "--max-lookahead", help="Never draft more than this.", rich_help_panel=_SPECULATION
    ),
]
RecordAcceptance = Annotated[
    Path | None,
    typer.Option(
        "--record-acceptance",
        metavar="FILE.jsonl",
        help="Append how far drafts held, for `outrider simulate`: counts, no text.",
        rich_help_panel=_SPECULATION,
    ),
]


def build_settings(
    config: Path | None,
    *,
    server: dict[str, object] | None = None,
    draft_server: dict[str, object] | None = None,
    target_server: dict[str, object] | None = None,
    target: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    max_sessions: int | None = None,
    max_context: int | None = None,
    kv_memory: str | None = None,
    draft: list[str] | None = None,
    controller: str | None = None,
    lookahead: int | None = None,
    max_lookahead: int | None = None,
    record_acceptance: Path | None = None,
) -> Settings:
    """Settings from the flags of a command, over environment and file. Raises `ConfigError`."""
    return load_settings(
        config,
        {
            "server": server or {},
            "draft_server": draft_server or {},
            "target_server": target_server or {},
            "engine": {
                "target": target,
                "dtype": dtype,
                "device": device,
                "threads": threads,
                "max_sessions": max_sessions,
                "max_context": max_context,
                "kv_memory": kv_memory,
            },
            "speculation": {
                "drafts": ",".join(draft) if draft else None,
                "controller": controller,
                "lookahead": lookahead,
                "max_lookahead": max_lookahead,
                "record_acceptance": record_acceptance,
            },
        },
    )


def json_parameter(given: str) -> tuple[str, Any]:
    """A field of a request from `NAME=JSON`."""
    name, equals, value = given.partition("=")
    try:
        if name and equals:
            return name, json.loads(value)
    except ValueError:  # not JSON: told below, like a missing name
        pass
    raise typer.BadParameter(
        f"{given!r} is not NAME=JSON; write such as presence_penalty=0.5", param_hint="--param"
    )
