"""A worker that says the prompt backwards, all but the first token at once, and prints much.

A request may ask it to fail, to die, or to say something that is not JSON.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from workers.wire import Emit, Generate, serve


def load() -> Generate:
    if "no-start" in sys.argv:
        raise ValueError("no such\nmodel")
    print("a library's banner")

    def generate(ids: list[int], max_tokens: int, request: dict[str, Any], emit: Emit) -> None:
        print("a library's progress")
        match request.get("do"):
            case "fail":
                raise RuntimeError("out of\nideas")
            case "die":
                print("a fatal fault", file=sys.stderr, flush=True)
                os._exit(3)
            case "hang":
                time.sleep(60)
        said = ids[::-1][:max_tokens]
        emit(said[:1])
        time.sleep(0.01)
        emit(said[1:])

    return generate


serve(load)
