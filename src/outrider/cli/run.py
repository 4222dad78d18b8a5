"""`outrider run`: gateway, drafters and target in one process."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import structlog
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from outrider.cli import options
from outrider.cli.console import LogLevel, load_pipeline, set_up_logs
from outrider.config import Settings
from outrider.gateway import create_app
from outrider.pipeline import Pipeline
from outrider.serving import bind, event_loop_factory, serve
from outrider.types import SamplingParams

__all__ = ["run", "serve_gateway"]

_WARM_UP_TOKENS = 8
_REFRESH_S = 0.5
_LOG_S = 10.0


def run(
    config: options.Config = None,
    host: options.Host = None,
    port: options.Port = None,
    log_level: options.Log = LogLevel.WARNING,
    target: options.Target = None,
    draft: options.Draft = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    threads: options.Threads = None,
    max_sessions: options.MaxSessions = None,
    max_context: options.MaxContext = None,
    kv_memory: options.KvMemory = None,
    controller: options.Controller = None,
    lookahead: options.Lookahead = None,
    max_lookahead: options.MaxLookahead = None,
    record_acceptance: options.RecordAcceptance = None,
) -> None:
    """Serve a model over the OpenAI API, with speculative decoding."""
    set_up_logs(log_level)
    settings = options.build_settings(
        config,
        server={"host": host, "port": port},
        target=target,
        dtype=dtype,
        device=device,
        threads=threads,
        max_sessions=max_sessions,
        max_context=max_context,
        kv_memory=kv_memory,
        draft=draft,
        controller=controller,
        lookahead=lookahead,
        max_lookahead=max_lookahead,
        record_acceptance=record_acceptance,
    )
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(serve_gateway(settings))


async def serve_gateway(settings: Settings) -> None:
    """Serve until told to end. Raises `OutriderError` if it cannot start."""
    # The port first: finding it taken after a minute of loading would waste that minute.
    listener = bind(settings.server.host, settings.server.port)
    host, port = listener.getsockname()[:2]
    try:
        pipeline = await load_pipeline(settings)
    except BaseException:
        listener.close()
        raise
    try:
        await _warm_up(pipeline)
        _welcome(pipeline, f"http://{host}:{port}")
        live = asyncio.create_task(_show_speed(pipeline))
        try:
            app = create_app(pipeline, settings)
            drain_s = settings.server.drain_s
            await serve(app, listener, app.state.lifecycle, drain_s=drain_s)
        finally:
            live.cancel()
            with suppress(asyncio.CancelledError):
                await live
    finally:
        await pipeline.close()


async def _warm_up(pipeline: Pipeline) -> None:
    """Decode a few tokens plainly: the first request finds memory in place, and a step measured."""
    prompt = tuple(range(min(8, pipeline.info.vocab_size)))
    sampling = SamplingParams(temperature=0.0, max_tokens=_WARM_UP_TOKENS, ignore_eos=True)
    async for _ in pipeline.run(pipeline.session(prompt, sampling, enabled=False)):
        pass
    pipeline.metrics.meter.forget()


def _welcome(pipeline: Pipeline, address: str) -> None:
    info = pipeline.info
    drafters = ", ".join(pipeline.drafter_names) or "none"
    served = f"{info.model_id} in {info.dtype}" if info.dtype else info.model_id
    if info.chat_template is not None:
        path, say = "chat/completions", "Write a haiku about the sea."
        messages = f'[{{"role": "user", "content": "{say}"}}]'
        body = f'{{"model": "{info.model_id}", "max_tokens": 64, "messages": {messages}}}'
        call = f'chat.completions.create(model="{info.model_id}", max_tokens=64, '
        call += f"messages={messages}).choices[0].message.content"
    else:
        path = "completions"
        body = f'{{"model": "{info.model_id}", "prompt": "0 1", "max_tokens": 16}}'
        call = f'completions.create(model="{info.model_id}", prompt="0 1").choices[0].text'
    typer.echo(
        f"""Outrider serves {served} on {address}  (drafters: {drafters}; Ctrl-C ends it)

  curl {address}/v1/{path} -H 'Content-Type: application/json' \\
    -d '{body}'

  from openai import OpenAI
  client = OpenAI(base_url="{address}/v1", api_key="none")
  print(client.{call})
"""
    )
    sys.stdout.flush()


async def _show_speed(pipeline: Pipeline) -> None:
    """The live line on a terminal; elsewhere a log line now and then, while there is work."""
    if not sys.stderr.isatty():
        log = structlog.get_logger("outrider.speed")
        while True:
            await asyncio.sleep(_LOG_S)
            if pipeline.metrics.meter.speed() is not None:
                log.info("speed", summary=_speed_line(pipeline))
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        while True:
            line = Text(_speed_line(pipeline), style="dim", no_wrap=True, overflow="ellipsis")
            live.update(line, refresh=True)
            await asyncio.sleep(_REFRESH_S)


def _speed_line(pipeline: Pipeline) -> str:
    running = f"{pipeline.occupancy()[0]} running"
    speed = pipeline.metrics.meter.speed()
    if speed is None:
        return f"{running} · idle"
    acceptance = "-" if speed.acceptance is None else f"{speed.acceptance:.0%}"
    speedup = "-" if speed.speedup is None else f"{speed.speedup:.2f}x"
    return (
        f"{running} · {speed.tokens_per_s:.1f} tokens/s · acceptance {acceptance} · "
        f"speed-up over plain {speedup} (estimated)"
    )
