"""`outrider serve`: gateway, draft server and target server, each a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.console import LogLevel, progress_bars, set_up_logs
from outrider.cli.run import serve_gateway
from outrider.config import Settings
from outrider.errors import ConfigError
from outrider.serving import event_loop_factory

__all__ = ["app"]

_REMOTE = ("grpc://", "grpcs://")

app = typer.Typer(
    help="The parts of a split deployment, each a process: gateway, draft, target.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """The parts of a split deployment, each a process of its own.

    Between machines, set the same secret everywhere: OUTRIDER_PEERS__TOKEN.
    """


@app.command()
def gateway(
    config: options.Config = None,
    host: options.Host = None,
    port: options.Port = None,
    log_level: options.Log = LogLevel.WARNING,
    target: options.Target = None,
    draft: options.Draft = None,
    controller: options.Controller = None,
    lookahead: options.Lookahead = None,
    max_lookahead: options.MaxLookahead = None,
    record_acceptance: options.RecordAcceptance = None,
) -> None:
    """The OpenAI API, over target servers (--target grpc://...) and draft servers.

    It needs no model files, and no torch.
    """
    settings = options.build_settings(
        config,
        server={"host": host, "port": port},
        target=target,
        draft=draft,
        controller=controller,
        lookahead=lookahead,
        max_lookahead=max_lookahead,
        record_acceptance=record_acceptance,
    )
    if not settings.engine.target.startswith(_REMOTE):
        raise ConfigError(
            f"engine.target is {settings.engine.target!r}, and a gateway needs a target server: "
            "--target grpc://HOST:PORT; `outrider run` serves a model in one process"
        )
    _serve(log_level, serve_gateway(settings))


@app.command()
def draft(
    config: options.Config = None,
    host: options.Host = None,
    port: options.Port = None,
    log_level: options.Log = LogLevel.WARNING,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="The draft model: named as a target is. By default engine.target of the "
            "configuration.",
        ),
    ] = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    threads: options.Threads = None,
    max_sessions: options.MaxSessions = None,
    max_context: options.MaxContext = None,
    kv_memory: options.KvMemory = None,
) -> None:
    """A draft model over HTTP: POST /v1/propose."""
    settings = options.build_settings(
        config,
        draft_server={"host": host, "port": port},
        target=model,
        dtype=dtype,
        device=device,
        threads=threads,
        max_sessions=max_sessions,
        max_context=max_context,
        kv_memory=kv_memory,
    )
    _check_local(settings, "draft server", "--model")
    _serve(log_level, _draft(settings))


@app.command()
def target(
    config: options.Config = None,
    host: options.Host = None,
    port: options.Port = None,
    status_port: Annotated[
        int | None,
        typer.Option("--status-port", help="HTTP port of /health, /ready and /metrics."),
    ] = None,
    log_level: options.Log = LogLevel.WARNING,
    target: options.Target = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            "--draft",
            metavar="DRAFTER",
            help="Drafters without a model that may run beside the target: ngram, suffix, or none.",
        ),
    ] = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    threads: options.Threads = None,
    max_sessions: options.MaxSessions = None,
    max_context: options.MaxContext = None,
    kv_memory: options.KvMemory = None,
) -> None:
    """A target model over gRPC: target_inference.InferenceService."""
    settings = options.build_settings(
        config,
        target_server={"host": host, "port": port, "status_port": status_port},
        target=target,
        draft=draft,
        dtype=dtype,
        device=device,
        threads=threads,
        max_sessions=max_sessions,
        max_context=max_context,
        kv_memory=kv_memory,
    )
    _check_local(settings, "target server", "--target")
    _serve(log_level, _target(settings))


def _check_local(settings: Settings, server: str, flag: str) -> None:
    if settings.engine.target.startswith(_REMOTE):
        raise ConfigError(
            f"engine.target is {settings.engine.target!r}, and a {server} runs its model itself; "
            f"name one with {flag}"
        )


def _serve(log_level: LogLevel, server: Coroutine[Any, Any, None]) -> None:
    set_up_logs(log_level)
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(server)


async def _draft(settings: Settings) -> None:
    from outrider.servers.draft import serve_draft  # noqa: PLC0415 # a gateway needs none of it

    def welcome(address: str) -> None:
        _say(
            f"""Outrider drafts with {settings.engine.target} on {address}  (Ctrl-C ends it)

  outrider serve gateway --target grpc://HOST:PORT --draft {address}
"""
        )

    with progress_bars() as progress:
        await serve_draft(settings, progress=progress, on_ready=welcome)


async def _target(settings: Settings) -> None:
    from outrider.servers.target import serve_target  # noqa: PLC0415 # as above

    def welcome(address: str, status: str) -> None:
        _say(
            f"""Outrider runs {settings.engine.target} on {address}, its status on {status}
(Ctrl-C ends it)

  outrider serve gateway --target {address}
"""
        )

    with progress_bars() as progress:
        await serve_target(settings, progress=progress, on_ready=welcome)


def _say(text: str) -> None:
    typer.echo(text)
    sys.stdout.flush()
