"""`outrider serve target`: a target behind gRPC, a process of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from outrider.config import Settings
from outrider.drafters import create_drafter
from outrider.errors import ConfigError
from outrider.models import StageProgress
from outrider.models.loading import in_daemon_thread
from outrider.servers.listener import Listener
from outrider.servers.near import NearDraftingTarget
from outrider.servers.target_checks import Checks
from outrider.servers.target_metrics import TargetMetrics
from outrider.servers.target_service import TargetService
from outrider.servers.target_sessions import Sessions
from outrider.servers.target_status import create_status_app
from outrider.serving import bind, check_exposure, serve
from outrider.targets import Scoring, Target, create_target

__all__ = ["OnReady", "serve_target"]

_NEAR: Final = ("ngram", "suffix")
"""Drafters that need neither a model nor the target's engine."""

_CUT_S: Final = 5.0
"""Seconds that the target gets to let go of sessions that are cut."""

OnReady = Callable[[str, str], None]


async def serve_target(
    settings: Settings,
    *,
    progress: StageProgress | None = None,
    on_ready: OnReady | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve the configured target until SIGTERM, Ctrl-C or `stop`.

    Then nothing is opened any more, the health service says NOT_SERVING and /ready 503; what is
    held may end within `target_server.drain_s`, and is cut after, or at a second Ctrl-C. Signals
    are handled in the main thread only.

    Args:
        settings: the target, where to listen, who may call.
        progress: called, from another thread, while a model is fetched and converted.
        on_ready: called once calls are taken, with the address for gateways, such as
            grpc://127.0.0.1:8002, and that of the status over HTTP.
        stop: set it to end as SIGTERM would.

    Raises:
        ConfigError, ModelError: with the remedy in the message.
    """
    server, spec = settings.target_server, settings.engine.target
    if spec.startswith(("grpc://", "grpcs://")):
        raise ConfigError(
            f"engine.target is {spec!r}, and a target server runs a model itself; name a model "
            "here, and that address at the gateway"
        )
    check_exposure(server.host, settings.peers, "target_server")
    # The ports first: finding one taken after a minute of loading would waste that minute.
    listener = Listener(server, settings.peers)
    try:
        with bind(server.host, server.status_port) as sock:
            target, scoring = await _create(settings, progress)
            try:
                await _serve(target, scoring, listener, sock, settings, on_ready, stop)
            finally:
                await target.close()
    finally:
        await listener.close()


async def _create(
    settings: Settings, progress: StageProgress | None
) -> tuple[Target, Scoring | None]:
    """The target, with drafters beside it, and the same as one that tells logits, if it does."""
    target, _ = await in_daemon_thread(partial(create_target, settings, progress=progress))
    try:
        info = await target.describe()
        drafters = {
            spec: await in_daemon_thread(partial(create_drafter, spec, info, None, settings))
            for spec in settings.speculation.drafts
            if spec in _NEAR
        }
    except BaseException:
        await target.close()
        raise
    near = NearDraftingTarget(target, drafters, settings.speculation)
    return near, target if isinstance(target, Scoring) else None


async def _serve(
    target: Target,
    scoring: Scoring | None,
    listener: Listener,
    sock: socket.socket,
    settings: Settings,
    on_ready: OnReady | None,
    stop: asyncio.Event | None,
) -> None:
    server = settings.target_server
    checks = Checks(await target.describe(), target.cache_use(), server.max_message_bytes)
    sessions = Sessions(target, checks, TargetMetrics(target), lease_s=server.lease_s)
    service = TargetService(
        sessions,
        scoring,
        concurrency_limit=server.concurrency_limit,
        max_message_bytes=server.max_message_bytes,
    )
    if service.described_bytes > server.max_message_bytes:
        raise ConfigError(
            f"target_server.max_message_bytes is {server.max_message_bytes}, and the tokenizer "
            f"that gateways ask for takes {service.described_bytes}; raise it"
        )

    def ready() -> None:
        scheme = "http" if settings.peers.cert_file is None else "https"
        host, port = sock.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        if on_ready is not None:
            on_ready(listener.address, f"{scheme}://{shown}:{port}")

    await listener.start(service)
    try:
        await serve(
            create_status_app(sessions),
            sock,
            _Lifecycle(sessions, listener),
            drain_s=server.drain_s,
            tls=settings.peers,
            on_ready=ready,
            stop=stop,
        )
    finally:
        await _cut(sessions)
        service.close_streams()
        await listener.close()


async def _cut(sessions: Sessions) -> None:
    with suppress(TimeoutError):  # a target that hangs is closed as it is
        async with asyncio.timeout(_CUT_S):
            await sessions.cut()


class _Lifecycle:
    """What the server has under way: the sessions that it holds."""

    def __init__(self, sessions: Sessions, listener: Listener) -> None:
        self._sessions = sessions
        self._listener = listener

    async def drain(self, timeout_s: float) -> None:
        """Open nothing new; return when all are released, or cut after `timeout_s`."""
        self._sessions.draining = True
        await self._listener.refuse()
        try:
            async with asyncio.timeout(timeout_s):
                await self._sessions.empty()
        except TimeoutError:
            await _cut(self._sessions)

    def abort(self) -> None:
        """Open nothing new; what is held is cut when the status server has ended."""
        self._sessions.draining = True
