"""`outrider serve draft`: a drafter behind HTTP, a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from outrider.config import Settings
from outrider.drafters.wire import ProposeRequest
from outrider.models import StageProgress
from outrider.models.loading import in_daemon_thread
from outrider.servers.create import create_served_drafter
from outrider.servers.draft_app import create_draft_app
from outrider.servers.draft_service import DraftService
from outrider.serving import bind, check_exposure, serve

__all__ = ["serve_draft"]

_KEEP_ALIVE_S = 75
"""Longer than our client keeps idle connections, so that it never sends into a closing one."""

_WARM_UP_TOKENS = 8


async def serve_draft(
    settings: Settings,
    *,
    progress: StageProgress | None = None,
    on_ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve the model that `engine.target` names as a drafter, until SIGTERM, Ctrl-C or `stop`.

    Then /ready answers 503 and new requests are refused; running ones finish within
    `draft_server.drain_s`, and are cut after, or at a second Ctrl-C. Signals are handled in the
    main thread only.

    Args:
        settings: the model, where to listen, who may call.
        progress: called, from another thread, while a model is fetched and converted.
        on_ready: called once requests are taken, with the address, such as http://127.0.0.1:8001.
        stop: set it to end as SIGTERM would.

    Raises:
        ConfigError, ModelError: with the remedy in the message.
    """
    server = settings.draft_server
    check_exposure(server.host, settings.peers, "draft_server")
    # The port first: finding it taken after a minute of loading would waste that minute.
    with bind(server.host, server.port) as sock:
        host, port = sock.getsockname()[:2]
        scheme = "http" if settings.peers.cert_file is None else "https"
        address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        served = await in_daemon_thread(partial(create_served_drafter, settings, progress=progress))
        try:
            service = DraftService(served.drafter, served.description, settings)
            await _warm_up(service)
            app = create_draft_app(service, settings)
            try:
                await serve(
                    app,
                    sock,
                    app.state.lifecycle,
                    drain_s=server.drain_s,
                    tls=settings.peers,
                    keep_alive_s=_KEEP_ALIVE_S,
                    on_ready=partial(on_ready, address) if on_ready is not None else None,
                    stop=stop,
                )
            finally:
                await service.sessions.close()
        finally:
            await served.close()


async def _warm_up(service: DraftService) -> None:
    """Draft once: the first request finds memory in place."""
    tokens = list(range(min(_WARM_UP_TOKENS, service.description.vocab_size)))
    await service.propose(ProposeRequest(tokens=tokens, num_tokens=2))
