"""The soak of `scripts/soak.py`, short."""

from __future__ import annotations

import pytest

from scripts.soak import soak
from tests.tiny import tiny_decoder

pytestmark = pytest.mark.anyio


async def test_hundreds_of_sessions_with_random_cancels_leave_nothing_behind() -> None:
    result = await soak(tiny_decoder(), 300, seed=1)
    assert result.faults == []
    assert result.ends["finished"] > 100
    assert result.ends["cancelled"] > 50
    assert result.ends.total() == 300
    assert result.reused > 1000
