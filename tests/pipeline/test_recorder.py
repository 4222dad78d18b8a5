"""Acceptance of live traffic, written to a file that replays read."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from outrider.drafters import NgramDrafter
from outrider.errors import ConfigError
from outrider.metrics import Metrics
from outrider.pipeline import Pipeline, create_pipeline
from outrider.pipeline.recorder import AcceptanceRecorder, create_recorder
from tests.pipeline.scenes import (
    GREEDY,
    PROMPT,
    ScriptedDrafter,
    alone,
    right,
    run,
    settings,
    table_target,
)

pytestmark = pytest.mark.anyio


async def recording(
    table: Path, out: Path, drafter=None, *, max_bytes: int = 1 << 20, **speculation
) -> Pipeline:
    configured = settings(**({"controller": "fixed", "lookahead": 3} | speculation))
    target, drafter = table_target(table), drafter or ScriptedDrafter(right(table))
    info = await drafter.describe()
    recorder = AcceptanceRecorder(out, max_bytes=max_bytes, most=16)
    return Pipeline(
        target,
        await target.describe(),
        {info.name: (drafter, info)},
        configured,
        Metrics(),
        recorder,
    )


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_what_a_drafter_had_right_is_recorded(file, tmp_path) -> None:
    pipeline = await recording(file, tmp_path / "a.jsonl")
    session = pipeline.session(PROMPT, GREEDY)
    await run(pipeline, session)
    await pipeline.close()
    (trace,) = lines(tmp_path / "a.jsonl")
    assert trace["drafter"] == "scripted"
    assert trace["prompt_tokens"] == len(PROMPT)
    assert trace["accepted"][:5] == [3, 2, 1, 0, 3]
    assert len(trace["accepted"]) == len(trace["drafted"]) == session.output_length - 1


async def test_the_file_holds_counts_and_no_tokens_or_session_ids(file, tmp_path) -> None:
    pipeline = await recording(file, tmp_path / "a.jsonl", NgramDrafter())
    session = pipeline.session(PROMPT, GREEDY)
    await run(pipeline, session)
    await pipeline.close()
    for trace in lines(tmp_path / "a.jsonl"):
        assert set(trace) == {"id", "drafter", "prompt_tokens", "accepted", "drafted"}
        assert session.session_id[:8] not in trace["id"]


async def test_a_session_without_speculation_is_not_recorded(file, tmp_path) -> None:
    pipeline = await recording(file, tmp_path / "a.jsonl")
    await run(pipeline, pipeline.session(PROMPT, GREEDY, enabled=False))
    await pipeline.close()
    assert lines(tmp_path / "a.jsonl") == []


async def test_a_file_is_appended_to(file, tmp_path) -> None:
    for _ in range(2):
        pipeline = await recording(file, tmp_path / "a.jsonl")
        await run(pipeline, pipeline.session(PROMPT, GREEDY))
        await pipeline.close()
    ids = [trace["id"] for trace in lines(tmp_path / "a.jsonl")]
    assert len(set(ids)) == 2


async def test_a_file_is_not_grown_beyond_its_limit(file, tmp_path) -> None:
    pipeline = await recording(file, tmp_path / "a.jsonl", max_bytes=700)
    for _ in range(5):
        assert await run(pipeline, pipeline.session(PROMPT, GREEDY)) == alone(file, PROMPT, GREEDY)
    await pipeline.close()
    assert 0 < (tmp_path / "a.jsonl").stat().st_size <= 700
    assert len(lines(tmp_path / "a.jsonl")) in (1, 2)


async def test_a_full_disk_costs_no_answer(file) -> None:
    pipeline = await recording(file, Path("/dev/full"))
    for _ in range(3):
        assert await run(pipeline, pipeline.session(PROMPT, GREEDY)) == alone(file, PROMPT, GREEDY)
    await pipeline.close()


async def test_a_line_that_was_written_in_part_is_taken_back(file, tmp_path) -> None:
    pipeline = await recording(file, tmp_path / "a.jsonl")
    recorder = pipeline._recorder
    assert recorder is not None
    real = recorder._stream

    class Filling:
        def write(self, text: bytes) -> int:
            return real.write(text[:20])

        def __getattr__(self, name: str):
            return getattr(real, name)

    recorder._stream = Filling()  # type: ignore[assignment]
    await run(pipeline, pipeline.session(PROMPT, GREEDY))
    await pipeline.close()
    assert (tmp_path / "a.jsonl").read_bytes() == b""


def test_a_file_that_cannot_be_written_is_told_of_at_the_start(tmp_path) -> None:
    configured = settings(record_acceptance=tmp_path / "none" / "a.jsonl").speculation
    with pytest.raises(ConfigError, match="No such file"):
        create_recorder(configured)


def test_without_a_file_nothing_is_recorded() -> None:
    assert create_recorder(settings().speculation) is None


async def test_a_file_that_cannot_be_written_is_told_of_before_models_are_loaded(tmp_path) -> None:
    configured = settings(record_acceptance=tmp_path)
    with pytest.raises(ConfigError, match="cannot record acceptance"):
        await create_pipeline(configured)


async def test_where_the_disk_is_too_slow_outputs_are_left_out(file, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("outrider.pipeline.recorder._WAITING", 1)
    pipeline = await recording(file, tmp_path / "a.jsonl")
    recorder = pipeline._recorder
    assert recorder is not None
    may_write = threading.Event()
    real = recorder._stream

    class Slow:
        def write(self, text: bytes) -> int:
            may_write.wait(10)
            return real.write(text)

        def __getattr__(self, name: str):
            return getattr(real, name)

    recorder._stream = Slow()  # type: ignore[assignment]
    for _ in range(6):
        await run(pipeline, pipeline.session(PROMPT, GREEDY))
    may_write.set()
    with capture_logs() as told:
        await pipeline.close()
    (left_out,) = [line for line in told if line["event"] == "acceptance_left_out"]
    assert len(lines(tmp_path / "a.jsonl")) + left_out["outputs"] == 6


async def test_a_disk_that_hangs_does_not_keep_the_server_from_ending(
    file, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("outrider.pipeline.recorder._PATIENCE_S", 0.05)
    pipeline = await recording(file, tmp_path / "a.jsonl")
    recorder = pipeline._recorder
    assert recorder is not None
    released = threading.Event()

    class Hanging:
        def write(self, text: bytes) -> int:
            released.wait(10)
            return len(text)

    real, recorder._stream = recorder._stream, Hanging()  # type: ignore[assignment]
    await run(pipeline, pipeline.session(PROMPT, GREEDY))
    with capture_logs() as told:
        await pipeline.close()
    assert [line["event"] for line in told] == ["acceptance_lost"]
    released.set()
    recorder._thread.join(5)
    real.close()


async def test_an_output_of_which_nothing_is_known_leaves_no_line(file, tmp_path) -> None:
    pipeline = await recording(file, tmp_path / "a.jsonl", lookahead=0)
    await run(pipeline, pipeline.session(PROMPT, GREEDY))
    await pipeline.close()
    assert (tmp_path / "a.jsonl").read_bytes() == b""


async def test_outputs_that_wait_when_recording_ends_are_dropped(file, tmp_path) -> None:
    pipeline = await recording(file, tmp_path / "a.jsonl", max_bytes=1)
    recorder = pipeline._recorder
    assert recorder is not None
    real, may_write = recorder._write, threading.Event()

    def late(text: bytes) -> None:
        may_write.wait(10)
        real(text)

    recorder._write = late  # type: ignore[method-assign]
    for _ in range(3):
        await run(pipeline, pipeline.session(PROMPT, GREEDY))
    with capture_logs() as told:
        may_write.set()
        await pipeline.close()
    assert [line["event"] for line in told] == ["acceptance_recording_ended"]
    assert (tmp_path / "a.jsonl").read_bytes() == b""
