"""Libraries without a server: a worker in the library's own environment, asked by lines of JSON.

The protocol is described in `outrider.bench.baselines.workers.wire`.
"""

from __future__ import annotations

import json
import select
import time
from collections.abc import Mapping
from typing import Any, Final

from outrider.bench.baselines.answer import Answer, Chunk
from outrider.bench.baselines.processes import PeerProcess
from outrider.errors import TargetFailed
from outrider.types import TokenIds

__all__ = ["WorkerLink"]

_READ_BYTES: Final = 2**16
_MAX_REPLY: Final = 64 * 2**20


class WorkerLink:
    """A worker behind the standard input and output of `process`.

    Args:
        process: started with `speaks`.
        timeout_s: longest time for an answer.
    """

    def __init__(self, process: PeerProcess, *, timeout_s: float) -> None:
        self._process = process
        self._timeout_s = timeout_s
        self._unread = b""

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return when the worker has loaded its model. Raises `TargetFailed` if it never does."""
        self._reply(timeout_s)

    def ask(self, prompt_ids: TokenIds, max_tokens: int, request: Mapping[str, Any]) -> Answer:
        """The greedy answer; `request` goes to the worker as it is. Raises `TargetFailed`."""
        message = {"prompt_ids": prompt_ids, "max_tokens": max_tokens, "request": dict(request)}
        try:
            self._process.input.write(json.dumps(message).encode() + b"\n")
            self._process.input.flush()
        except OSError as error:
            raise TargetFailed(f"{self._process.name} does not listen ({error})") from error
        reply = self._reply(self._timeout_s)
        try:
            ids = [token for _, tokens in reply["chunks"] for token in tokens]
            chunks = [Chunk(at, len(tokens)) for at, tokens in reply["chunks"] if tokens]
            return Answer(
                reply["asked_at"], tuple(chunks), reply["ended_at"], len(prompt_ids), tuple(ids)
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TargetFailed(
                f"{self._process.name} did not answer properly: {error!r}"
            ) from error

    def _reply(self, timeout_s: float) -> dict[str, Any]:
        line = self._line(timeout_s)
        try:
            reply: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise TargetFailed(
                f"{self._process.name} said {line[:200]!r} instead of JSON"
            ) from error
        if "error" in reply:
            raise TargetFailed(f"{self._process.name} failed: {reply['error']}")
        return reply

    def _line(self, timeout_s: float) -> bytes:
        output = self._process.output
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([output], [], [], left)[0]:
                raise TargetFailed(
                    f"{self._process.name} did not answer within {timeout_s:g} s"
                ) from TimeoutError()
            read = output.read1(_READ_BYTES)  # type: ignore[attr-defined] # a BufferedReader
            if not read:
                raise TargetFailed(f"{self._process.name} ended: {self._process.last_words()}")
            self._unread += read
            if len(self._unread) > _MAX_REPLY:
                raise TargetFailed(f"{self._process.name} answered with more than {_MAX_REPLY} B")
        line, _, self._unread = self._unread.partition(b"\n")
        return line
