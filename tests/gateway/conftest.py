"""Gateways over tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.config import Settings
from outrider.pipeline import create_pipeline

from .serving import Gateway, in_process, running

Serving = Callable[..., AbstractAsyncContextManager[Gateway]]


@pytest.fixture
def table_gateway(write_table: Callable[..., Path]) -> Serving:
    """Makes gateways over a table target with a table drafter and an n-gram drafter."""

    @asynccontextmanager
    async def make(
        *,
        drafts: tuple[str, ...] | None = None,
        table: dict[str, Any] | None = None,
        sockets: bool = False,
        **sections: Any,
    ) -> AsyncIterator[Gateway]:
        target = write_table("target", **(table or {}))
        draft = write_table("draft", **({"scale": 1.4} | (table or {})))
        names = (f"table:{draft}", "ngram") if drafts is None else drafts
        # A table answers in no time, so a controller that measures time would rarely draft.
        speculation = {"drafts": names, "controller": "fixed"}
        settings = Settings(
            engine={"target": f"table:{target}"}, speculation=speculation, **sections
        )
        pipeline = await create_pipeline(settings)
        async with (running if sockets else in_process)(pipeline, settings) as gateway:
            yield gateway

    return make
