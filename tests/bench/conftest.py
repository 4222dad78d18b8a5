"""What the tests of the bench share."""

from __future__ import annotations

import pytest

from .scripted import ScriptedClock


@pytest.fixture
def clock() -> ScriptedClock:
    return ScriptedClock()
