"""Building everything behind the gateway, whole or not at all."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from outrider.config import Settings, load_settings
from outrider.errors import ConfigError, UnknownModel, VocabularyMismatch
from outrider.pipeline import create_pipeline
from outrider.targets import TableTarget
from outrider.types import SamplingParams
from tests.pipeline.scenes import alone, run

pytestmark = pytest.mark.anyio


def settings(target: Path, *drafts: str) -> Settings:
    return load_settings(
        None,
        {
            "engine": {"target": f"table:{target}"},
            "speculation": {"drafts": ",".join(drafts or ("none",))},
        },
    )


async def test_drafters_are_named_in_order_and_the_first_is_the_default(write_table) -> None:
    target, draft = write_table("target", seed=1), write_table("draft", seed=2)
    pipeline = await create_pipeline(settings(target, f"table:{draft}", "ngram"))
    assert pipeline.drafter_names == ("table:draft", "ngram")
    params = SamplingParams(seed=1, max_tokens=20)
    session = pipeline.session((0, 1), params)
    assert await run(pipeline, session) == alone(target, (0, 1), params)
    assert session.stats.drafter == "table:draft"
    await pipeline.close()


async def test_none_leaves_the_target_alone(write_table) -> None:
    pipeline = await create_pipeline(settings(write_table("target")))
    assert pipeline.drafter_names == ()
    assert pipeline.session((0,), SamplingParams()).stats.drafter is None


@pytest.mark.parametrize(
    ("drafts", "error"),
    [
        (("ngram", "ngram"), ConfigError),
        (("layers:2",), ConfigError),
        (("self",), ConfigError),
        (("table:nowhere.json",), UnknownModel),
        (("./nowhere",), UnknownModel),
        (("table:OTHER",), VocabularyMismatch),
    ],
)
async def test_if_a_drafter_cannot_be_built_nothing_is_left(
    write_table, monkeypatch, drafts, error
) -> None:
    closed = []

    async def close(self: TableTarget) -> None:
        closed.append(self)

    monkeypatch.setattr(TableTarget, "close", close)
    other = write_table("other", vocab_size=9)
    drafts = [draft.replace("OTHER", str(other)) for draft in drafts]
    with pytest.raises(error):
        await create_pipeline(settings(write_table("target"), *drafts))
    assert len(closed) == 1


async def test_loading_can_be_given_up_at_once(write_table, monkeypatch) -> None:
    """Ctrl-C must not have to wait for a download."""
    started, hold = threading.Event(), threading.Event()

    def slow(settings: Settings, *, progress: object) -> None:
        started.set()
        hold.wait(10)

    monkeypatch.setattr("outrider.pipeline.create.create_target", slow)
    task = asyncio.create_task(create_pipeline(settings(write_table("target"))))
    await asyncio.to_thread(started.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(1):
            await task
    hold.set()


async def test_a_recorder_ends_with_a_pipeline_that_could_not_be_built(
    write_table, tmp_path, monkeypatch
) -> None:
    file = tmp_path / "record.jsonl"
    monkeypatch.setenv("OUTRIDER_SPECULATION__RECORD_ACCEPTANCE", str(file))
    with pytest.raises(ConfigError):
        await create_pipeline(settings(write_table("target"), "self"))
    assert file.exists()
    assert not any(thread.name == "recorder" for thread in threading.enumerate())


async def test_an_error_while_loading_reaches_the_caller(write_table) -> None:
    with pytest.raises(UnknownModel, match="nowhere"):
        await create_pipeline(settings(Path("nowhere.json")))
