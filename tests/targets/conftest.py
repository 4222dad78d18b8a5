"""What tests of targets elsewhere share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

LIMIT_S = 20.0


@pytest.fixture
def table(write_table):
    return write_table(vocab_size=5, order=2, seed=3)


@pytest.fixture
async def nothing_is_left() -> AsyncIterator[None]:
    """However a test ends, no task of ours goes on behind it."""
    before = asyncio.all_tasks()
    async with asyncio.timeout(LIMIT_S):
        yield
    left = [t for t in asyncio.all_tasks() - before if "outrider" in repr(t.get_coro())]
    assert not left
