"""The table that most tests of the round loop decode from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def file(write_table: Callable[..., Path]) -> Path:
    return write_table("target", seed=1, order=2)
