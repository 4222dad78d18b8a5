"""Suffix matching: guess what followed the end of the text where it occurred before, in the request
itself or in earlier outputs of the same tenant.

Source: SuffixDecoding (arXiv 2411.04975). How occurrences are found and weighed: `suffix_log`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from outrider.drafters.base import SessionView
from outrider.drafters.suffix_log import SEPARATOR, SuffixLog, open_log
from outrider.errors import DraftFailed
from outrider.types import NO_DRAFT, Draft, DrafterInfo

__all__ = ["SuffixDrafter"]

_SESSION_TOKENS = 1 << 17
"""Most tokens of a request that are looked at: its last."""

_FIRST_TOKENS = 1 << 12
"""What a tenant's cache holds before it first grows."""

_SMALL = 1 << 14
"""A log of so few tokens grows within a millisecond or two."""

_ENOUGH = 0.9
"""A draft from the request itself of which this share is expected to be right needs no other."""

_LEAD = 16
"""Tokens of the prompt that enter the cache in front of an output: without them nothing would lead
to its beginning."""


class SuffixDrafter:
    """Drafts from the request's own tokens and from a cache of earlier outputs.

    An output enters the cache of its tenant when its session is released; no other tenant sees it.
    A full cache forgets its oldest tokens. The cache of the tenant that was away for longest goes
    when there are too many.

    A drafter belongs to one target, so that caches are per model, too.

    Args:
        cache_tokens: most that a tenant's cache holds, a power of 2; a token takes 36 bytes.
        max_tenants: most that have a cache.
    """

    def __init__(self, *, cache_tokens: int = 1 << 18, max_tenants: int = 32) -> None:
        if cache_tokens < 16 or cache_tokens & (cache_tokens - 1):
            raise ValueError(f"cache_tokens is {cache_tokens}; use a power of 2 of at least 16")
        if max_tenants < 1:
            raise ValueError(f"max_tenants is {max_tenants}; use at least 1")
        self._cache_tokens = cache_tokens
        self._max_tenants = max_tenants
        self._sessions: dict[str, _Session] = {}
        self._caches: OrderedDict[str, _Cache] = OrderedDict()  # the latest used last

    async def describe(self) -> DrafterInfo:
        return DrafterInfo(name="suffix", deterministic=False)  # it learns from other requests

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        if max_tokens < 1:
            return NO_DRAFT
        log = await self._read(view)
        guess = log.find(log, max_tokens)
        cache = self._caches.get(view.tenant)
        if cache is not None and guess.score < _ENOUGH * max_tokens:
            self._caches.move_to_end(view.tenant)
            cached = cache.log.find(log, max_tokens)
            if cached.score > guess.score:
                guess = cached
        return Draft(guess.token_ids, "suffix", guess.match) if guess.token_ids else NO_DRAFT

    async def release(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        view = session.view
        if len(view.tokens) > view.prompt_length:
            start = max(view.prompt_length - _LEAD, len(view.tokens) - self._cache_tokens, 0)
            with suppress(MemoryError):  # a cache that there is no room for is none
                await self._cache(view.tenant).enter(view.tokens[start:])

    async def close(self) -> None:
        self._sessions.clear()
        self._caches.clear()

    def cache_bytes(self) -> int:
        """Memory of the caches of earlier outputs, at most 36 x `cache_tokens` x `max_tenants`."""
        return sum(cache.log.size_bytes for cache in self._caches.values())

    def session_bytes(self) -> int:
        """Memory of the indexes of sessions under way."""
        return sum(session.log.size_bytes for session in self._sessions.values())

    async def _read(self, view: SessionView) -> SuffixLog:
        """The session's log, with all its tokens.

        A long prompt is read in pieces, between which others get to run. Cancelled between two, it
        goes on there the next time.
        """
        session = self._sessions.get(view.session_id)
        try:
            if session is None:
                most = min(view.prompt_length + view.sampling.max_tokens, _SESSION_TOKENS)
                session = _Session(view, open_log(_window(most)))
                self._sessions[view.session_id] = session
        except MemoryError as error:
            raise DraftFailed(f"suffix: {error}") from None
        session.view = view
        log = session.log
        start = max(session.read, view.length - log.window)
        while start < view.length:
            end = min(start + log.batch, view.length)
            log.append(view.tokens[start:end])
            session.read = start = end
            if end < view.length:
                await asyncio.sleep(0)
        return log

    def _cache(self, tenant: str) -> _Cache:
        cache = self._caches.get(tenant)
        if cache is None:
            first = min(_FIRST_TOKENS, self._cache_tokens)
            cache = self._caches[tenant] = _Cache(open_log(first), self._cache_tokens)
        self._caches.move_to_end(tenant)
        while len(self._caches) > self._max_tenants:
            self._caches.popitem(last=False)
        return cache


@dataclass(slots=True)
class _Session:
    """What is known of a session under way.

    Attributes:
        view: the latest.
        log: its tokens.
        read: how many of them the log was given.
    """

    view: SessionView
    log: SuffixLog
    read: int = 0


@dataclass(slots=True)
class _Cache:
    """Earlier outputs of one tenant.

    Attributes:
        log: of the outputs.
        most: tokens that it may hold.
        entered: tokens that it was given.
    """

    log: SuffixLog
    most: int
    entered: int = 0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def enter(self, tokens: Sequence[int]) -> None:
        """Append an output; others may look things up meanwhile."""
        async with self._lock:
            wanted = _window(min(self.entered + len(tokens) + 1, self.most))
            if wanted > self.log.window:
                await self._grow(wanted)
            self.log.append((SEPARATOR,))
            for start in range(0, len(tokens), self.log.batch):
                self.log.append(tokens[start : start + self.log.batch])
                await asyncio.sleep(0)
            self.entered += len(tokens) + 1

    async def _grow(self, window: int) -> None:
        try:
            if self.log.window <= _SMALL:
                self.log = self.log.grown(window)
            else:
                self.log = await asyncio.to_thread(self.log.grown, window)
        except MemoryError:
            self.most = self.log.window  # the oldest tokens go earlier


def _window(tokens: int) -> int:
    """The smallest window that holds so many tokens."""
    return 1 << max(tokens - 1, 15).bit_length()
