"""Target servers over tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from outrider.config import Settings

from .target_serving import Server, serving

Serving = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture
def target_server(write_table: Callable[..., Path]) -> Serving:
    """Makes servers over a table target on ports of the system's choice."""

    def make(
        *,
        table: dict[str, Any] | None = None,
        server: dict[str, Any] | None = None,
        **sections: Any,
    ) -> AbstractAsyncContextManager[Server]:
        file = write_table("target", **({"context_length": 1024} | (table or {})))
        engine = {"target": f"table:{file}"} | sections.pop("engine", {})
        ports = {"port": 0, "status_port": 0, "drain_s": 0.1}
        return serving(Settings(engine=engine, target_server=ports | (server or {}), **sections))

    return make
