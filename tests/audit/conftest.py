"""Fixed noise, since an audit accuses even an honest server once in a hundred times."""

from __future__ import annotations

import itertools

import pytest

from outrider.audit import plan
from outrider.gateway import prepare
from outrider.sampling import noise_key


@pytest.fixture(autouse=True)
def few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """P-values are exact with any number of null tables, and a few thousand are soon drawn."""
    monkeypatch.setattr(plan, "_TABLES", 3000)


@pytest.fixture
def fixed_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real gateway draws the same outputs in every run, for requests in the same order."""
    numbers = itertools.count(1000)
    monkeypatch.setattr(
        prepare, "noise_key", lambda seed: noise_key(next(numbers) if seed is None else seed)
    )
