"""What servers are asked over HTTP, and how their streams are read.

Every server gets the same token ids. The stream's bytes are stamped as they come and read
only when the answer is complete, so that the reading takes no time from the peer.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from outrider.bench.baselines.answer import Answer, Chunk
from outrider.endpoints import Events
from outrider.errors import TargetFailed
from outrider.types import TokenIds

__all__ = ["DIALECTS", "Dialect", "HttpLink", "read_llama", "read_openai"]

_MAX_BYTES: Final = 2**20
_READ_BYTES: Final = 2**16
_POLL_S: Final = 0.2
_GET_TIMEOUT_S: Final = 10.0
_REASON_CHARS: Final = 300

Event = tuple[float, dict[str, Any]]
"""Arrival in seconds on the monotonic clock, and the event's JSON."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a kind of server is spoken to.

    Attributes:
        path: where prompts are posted.
        body: of a request for token ids and at most so many tokens, greedily.
        read: chunks, the token ids if all are known, and the prompt's length.
        models: where the served model is listed, whose name each request must hold; None if none.
    """

    path: str
    body: Callable[[TokenIds, int], dict[str, Any]]
    read: Callable[[Sequence[Event]], tuple[list[Chunk], TokenIds | None, int | None]]
    models: str | None = None


def _openai_body(prompt_ids: TokenIds, max_tokens: int) -> dict[str, Any]:
    return {
        "prompt": list(prompt_ids),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def read_openai(events: Sequence[Event]) -> tuple[list[Chunk], TokenIds | None, int | None]:
    """A stream of `/v1/completions` with `return_token_ids`, as vLLM and Outrider send it."""
    chunks: list[Chunk] = []
    ids: list[int] = []
    prompt_tokens = counted = None
    for at, event in events:
        for choice in event.get("choices") or ():
            new = choice.get("token_ids") or ()
            ids += new
            if new:
                chunks.append(Chunk(at, len(new)))
        usage = event.get("usage")
        if usage:
            prompt_tokens, counted = usage["prompt_tokens"], usage["completion_tokens"]
    if counted is not None and counted != len(ids):
        raise ValueError(f"usage counts {counted} tokens, the stream held {len(ids)}")
    return chunks, tuple(ids), prompt_tokens


def _llama_body(prompt_ids: TokenIds, max_tokens: int) -> dict[str, Any]:
    return {
        "prompt": list(prompt_ids),
        "n_predict": max_tokens,
        "temperature": 0,
        "stream": True,
        "return_tokens": True,
        "cache_prompt": False,
    }


def read_llama(events: Sequence[Event]) -> tuple[list[Chunk], TokenIds | None, int | None]:
    """A stream of llama-server's `/completion`.

    A token that ends in the middle of a character has no event of its own, but `tokens_predicted`
    counts it with the next.
    """
    chunks: list[Chunk] = []
    ids: list[int] = []
    prompt_tokens = None
    total = 0
    for at, event in events:
        prompt_tokens = event.get("tokens_evaluated", prompt_tokens)
        ids += event.get("tokens") or ()
        new = event.get("tokens_predicted", total) - total
        if new > 0:
            chunks.append(Chunk(at, new))
            total += new
    return chunks, tuple(ids) if len(ids) == total else None, prompt_tokens


DIALECTS: Final[Mapping[str, Dialect]] = {
    "openai": Dialect("/v1/completions", _openai_body, read_openai, "/v1/models"),
    "llama": Dialect("/completion", _llama_body, read_llama),
}


class HttpLink:
    """A server on a loopback port.

    Args:
        name: for messages.
        port: where it listens, or will.
        dialect: see `DIALECTS`.
        alive: does its process still run?
        timeout_s: longest silence in an answer.
    """

    def __init__(
        self,
        name: str,
        port: int,
        dialect: Dialect,
        *,
        alive: Callable[[], bool],
        timeout_s: float,
    ) -> None:
        self._name = name
        self._port = port
        self._dialect = dialect
        self._alive = alive
        self._timeout_s = timeout_s
        self._named: dict[str, str] = {}

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return when `/health` says 200. Raises `TargetFailed` if that never comes."""
        deadline = time.monotonic() + timeout_s
        while self._get("/health") is None:
            if not self._alive():
                raise TargetFailed(f"{self._name} ended while starting")
            if time.monotonic() > deadline:
                raise TargetFailed(f"{self._name} was not ready within {timeout_s:g} s")
            time.sleep(_POLL_S)
        if self._dialect.models is not None:
            try:
                listed = json.loads(self._get(self._dialect.models) or b"")["data"]
                self._named = {"model": listed[0]["id"]}
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise TargetFailed(f"{self._name} does not list its model ({error!r})") from error

    def ask(self, prompt_ids: TokenIds, max_tokens: int, request: Mapping[str, Any]) -> Answer:
        """The greedy answer. `request` goes into the body. Raises `TargetFailed`."""
        body = self._dialect.body(prompt_ids, max_tokens) | self._named | dict(request)
        content = json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self._timeout_s)
        try:
            connection.connect()
            asked_at = time.monotonic()
            connection.request(
                "POST", self._dialect.path, content, {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            if response.status != 200:
                said = " ".join(response.read(_MAX_BYTES).decode(errors="replace").split())
                raise TargetFailed(
                    f"{self._name} answered {response.status}: {said[:_REASON_CHARS]}"
                )
            stamped = list(_stamped(response))
            ended_at = time.monotonic()
            chunks, token_ids, prompt_tokens = self._dialect.read(_events(self._name, stamped))
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise TargetFailed(
                f"{self._name} did not answer properly: {error or type(error).__name__}"
            ) from error
        finally:
            connection.close()
        if prompt_tokens is not None and prompt_tokens != len(prompt_ids):
            raise TargetFailed(
                f"{self._name} read {prompt_tokens} prompt tokens where {len(prompt_ids)} were sent"
            )
        return Answer(asked_at, tuple(chunks), ended_at, prompt_tokens, token_ids)

    def _get(self, path: str) -> bytes | None:
        """What `path` holds; None if there is no answer, or not 200."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_GET_TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.read(_MAX_BYTES) if response.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


def _stamped(response: http.client.HTTPResponse) -> Iterator[tuple[float, bytes]]:
    while block := response.read1(_READ_BYTES):
        yield time.monotonic(), block


def _events(name: str, stamped: Sequence[tuple[float, bytes]]) -> list[Event]:
    events: list[Event] = []
    stream = Events()
    for at, block in stamped:
        for data in stream.feed(block):
            if data == b"[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                said = " ".join(json.dumps(event["error"]).split())
                raise TargetFailed(f"{name} failed in mid-stream: {said[:_REASON_CHARS]}")
            events.append((at, event))
    return events
