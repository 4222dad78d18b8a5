"""What a lane is opened with, from settings."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from outrider.config import EngineSettings
from outrider.engine import EngineThread, open_lane
from outrider.engine.memory import available_bytes
from outrider.errors import ConfigError
from tests.tiny import CONTEXT, tiny_decoder

BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, head width, float32


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    engine = EngineThread(threads=1)
    yield engine
    engine.close()


def test_memory_that_was_set_is_what_sequences_may_take(engine) -> None:
    settings = EngineSettings(kv_memory="1MB", max_sessions=4)
    lane = open_lane(tiny_decoder(), settings, engine)
    assert lane.cache.bytes_per_token == BYTES_PER_TOKEN
    assert lane.cache.budget == 1_000_000 // BYTES_PER_TOKEN
    assert (lane.num_slots, lane.cache.max_length) == (4, CONTEXT)


def test_memory_that_was_not_set_is_as_much_as_all_sequences_could_use(engine) -> None:
    lane = open_lane(tiny_decoder(), EngineSettings(max_sessions=4), engine)
    assert lane.cache.budget == 4 * CONTEXT


def test_memory_that_was_not_set_is_at_most_a_quarter_of_what_there_is(engine, monkeypatch) -> None:
    free = 4 * 500 * BYTES_PER_TOKEN
    monkeypatch.setattr("outrider.engine.load.available_bytes", lambda device: free)
    assert open_lane(tiny_decoder(), EngineSettings(), engine).cache.budget == 500


def test_a_machine_with_hardly_any_memory_still_serves(engine, monkeypatch) -> None:
    monkeypatch.setattr("outrider.engine.load.available_bytes", lambda device: 0)
    assert open_lane(tiny_decoder(), EngineSettings(), engine).cache.budget == CONTEXT


def test_memory_for_next_to_nothing_is_refused_and_no_thread_is_left() -> None:
    settings = EngineSettings(kv_memory=4 * BYTES_PER_TOKEN - 1)
    before = threading.active_count()
    with pytest.raises(ConfigError, match=r"engine\.kv_memory.* holds 3 tokens"):
        open_lane(tiny_decoder(), settings, None)
    assert threading.active_count() == before


def test_a_context_longer_than_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"max_context is 1000.* context is {CONTEXT}"):
        open_lane(tiny_decoder(), EngineSettings(max_context=1000), None)


def test_available_memory_is_less_than_there_is_and_more_than_none() -> None:
    assert 2**24 < available_bytes(torch.device("cpu")) < 2**50


def test_a_containers_limit_counts(monkeypatch, tmp_path) -> None:
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("4000000\n")
    monkeypatch.setattr("outrider.engine.memory._CGROUP", tmp_path)
    assert available_bytes(torch.device("cpu")) == 1_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(torch.device("cpu")) > 1_000_000
    monkeypatch.setattr("outrider.engine.memory._MEMINFO", tmp_path / "none")
    assert available_bytes(torch.device("cpu")) > 1_000_000
