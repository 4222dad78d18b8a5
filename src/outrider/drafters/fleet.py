"""The draft servers that serve one model: which is there, which fits, which is left alone."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import structlog

from outrider.config import Settings
from outrider.drafters.draft_server import DraftServer
from outrider.endpoints import base_url
from outrider.errors import ConfigError, DraftFailed, VocabularyMismatch
from outrider.types import TargetInfo

__all__ = ["Fleet"]

_CONNECTIONS: Final = 512
_IDLE_S: Final = 30.0
_CONNECT_S: Final = 2.0
_MEET_S: Final = 5.0
_CLOSE_S: Final = 1.0
_ABANDONED_S: Final = 2.0

_log = structlog.get_logger("outrider.remote")


class Fleet:
    """Some draft servers, and the connections to them.

    One that keeps failing is cut off, and probed in the background: no request waits for it. What a
    server is, is asked when it is first reached, which need not be at the start.

    Args:
        urls: addresses, each as http://HOST:PORT.
        target: what is drafted for.
        settings: deadline, token, certificates.

    Attributes:
        servers: as many as `urls`.
        name: of them all.

    Raises:
        ConfigError: something is no address, or `peers.ca_file` cannot be used.
    """

    def __init__(self, urls: Sequence[str], target: TargetInfo, settings: Settings) -> None:
        most_s = settings.speculation.remote_deadline_ms / 1000
        self.servers = [_server(url, most_s) for url in urls]
        self.name = "+".join(server.name for server in self.servers)
        self._target = target
        self._token = settings.peers.token.get_secret_value()
        self._tls = _tls(settings) if any(url.startswith("https:") for url in urls) else None
        self._http: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def meet(self) -> None:
        """Ask all servers what they are; those that cannot be reached are cut off for now.

        Raises:
            VocabularyMismatch: one serves a model that does not share the target's tokens.
            ConfigError: two serve different models.
        """
        await asyncio.gather(*(self._meet_at_start(server) for server in self.servers))

    def choose(self) -> DraftServer:
        """The server that has the least to do of those that work.

        Raises:
            DraftFailed: none may be called now.
        """
        self._probe_due()
        refusals = [server.breaker.refusal() for server in self.servers]
        usable = [
            server for server, refusal in zip(self.servers, refusals, strict=True) if not refusal
        ]
        if not usable:
            raise DraftFailed("; ".join(filter(None, refusals)))
        return min(usable, key=lambda server: (server.breaker.failed_in_row, server.sessions))

    @property
    def http(self) -> aiohttp.ClientSession:
        """The connections."""
        if self._http is None:  # made on the event loop that uses it
            headers = {"Accept-Encoding": "identity"}
            if self._token:
                headers["Authorization"] = f"Bearer {self._token}"
            self._http = aiohttp.ClientSession(
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                connector=aiohttp.TCPConnector(
                    limit=_CONNECTIONS, keepalive_timeout=_IDLE_S, ssl=self._tls or True
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._http

    def let_end(self, call: asyncio.Task[Any]) -> None:
        """Nobody waits for this call any more, but its connection is worth keeping.

        The server stops drafting as soon as it is asked for something else of the session.
        """
        timer = asyncio.get_running_loop().call_later(_ABANDONED_S, call.cancel)
        self._tasks.add(call)

        def ended(_: object) -> None:
            timer.cancel()
            self._tasks.discard(call)
            if not call.cancelled():
                call.exception()  # seen, so that nobody reports it as never retrieved

        call.add_done_callback(ended)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the background."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Let what is under way end, for a moment, and close all connections."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_CLOSE_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        if self._http is not None:
            await self._http.close()

    def _probe_due(self) -> None:
        for server in self.servers:
            if server.breaker.begin_probe():
                self.start(self._probe(server))

    async def _meet_at_start(self, server: DraftServer) -> None:
        try:
            await self._meet(server)
        except DraftFailed as error:
            server.breaker.trip()
            _log.warning("draft_server_unreachable", server=server.name, reason=str(error))

    async def _meet(self, server: DraftServer) -> None:
        """Ask what the server is, and whether that fits.

        Raises:
            DraftFailed: it cannot be reached.
            VocabularyMismatch, ConfigError: it does not fit.
        """
        try:
            async with asyncio.timeout(_MEET_S):
                said = await server.describe(self.http)
        except TimeoutError:
            raise DraftFailed(
                f"draft server {server.name} did not answer within {_MEET_S:g} s"
            ) from None
        target = self._target
        if said is not None and said.vocab_fingerprint != target.vocab_fingerprint:
            raise VocabularyMismatch(
                f"draft server {server.name} serves {said.name[:200]!r} with vocabulary "
                f"{said.vocab_fingerprint[:16]}, and target {target.model_id!r} has "
                f"{target.vocab_fingerprint[:16]}; serve a draft model of the target's family"
            )
        for other in self.servers:
            known = other.description
            if said and known and other is not server and known.model_hash != said.model_hash:
                raise ConfigError(
                    f"draft servers {other.name} and {server.name} serve different models, "
                    f"{known.name[:200]!r} and {said.name[:200]!r}; name them as drafters of "
                    "their own, with a comma between"
                )
        server.plain = said is None
        server.description = said

    async def _probe(self, server: DraftServer) -> None:
        good = False
        try:
            await self._meet(server)
            good = True
            _log.info("draft_server_back", server=server.name)
        except (DraftFailed, VocabularyMismatch, ConfigError) as error:
            _log.warning("draft_server_cut_off", server=server.name, reason=str(error))
        finally:
            server.breaker.end_probe(good=good)


def _server(url: str, most_s: float) -> DraftServer:
    address = base_url(url)
    parts = urlsplit(address)
    if "@" in parts.netloc:
        raise ConfigError(
            f"the address of draft server {parts.hostname} holds a password; use peers.token"
        )
    name = parts.netloc + parts.path.removesuffix("/v1")
    return DraftServer(address, name, most_s=most_s)


def _tls(settings: Settings) -> ssl.SSLContext:
    file = settings.peers.ca_file
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"peers.ca_file {file} cannot be used: {error}; it must hold certificates as PEM"
        ) from None
