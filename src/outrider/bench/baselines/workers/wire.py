"""How a worker speaks: one line of JSON in, one line of JSON out.

When its model is loaded a worker says `{"ready": true}`. Then each line

    {"prompt_ids": [...], "max_tokens": n, "request": {...}}

is answered with

    {"asked_at": seconds, "chunks": [[seconds, [token ids]], ...], "ended_at": seconds}

on the machine's monotonic clock, or with `{"error": "..."}`. The end of the input ends it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Emit", "Generate", "serve"]

Emit = Callable[[Sequence[int]], None]
"""To be called with new tokens as soon as they are known."""

Generate = Callable[[list[int], int, dict[str, Any], Emit], None]
"""Answers token ids greedily with at most so many tokens, under further options of the request."""


def serve(load: Callable[[], Generate]) -> None:
    """Load a model and answer until the input ends."""
    # Libraries print to standard output as they like; that must not get between the lines.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        generate = load()
    except Exception as error:  # whatever the library raises is its answer
        reply({"error": _one_line(error)})
        raise
    reply({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        chunks: list[tuple[float, list[int]]] = []

        def emit(tokens: Sequence[int], into: list[tuple[float, list[int]]] = chunks) -> None:
            into.append((time.monotonic(), list(tokens)))

        asked_at = time.monotonic()
        try:
            generate(asked["prompt_ids"], asked["max_tokens"], asked["request"], emit)
        except Exception as error:  # likewise; the next request may fare better
            reply({"error": _one_line(error)})
            continue
        reply({"asked_at": asked_at, "chunks": chunks, "ended_at": time.monotonic()})


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
