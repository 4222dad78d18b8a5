"""The split deployment, real processes on loopback, through every fault: the same output, or a
clean error; and everything given back."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest

from outrider.metrics import Metrics
from outrider.models import TableModel
from outrider.pipeline import Pipeline
from outrider.targets import TableTarget
from outrider.types import SamplingParams
from tests.integration.split import (
    Answer,
    Deployment,
    Part,
    complete,
    deploy,
    draft,
    gateway,
    settles,
    target,
)
from tests.pipeline.scenes import PROMPT, run, settings

pytestmark = pytest.mark.integration

LONG = 2500
"""Tokens of an output that takes long enough to be disturbed in the middle."""

SAMPLINGS = {"greedy": {"temperature": 0}, "seeded": {"temperature": 1.0, "seed": 11}}
QUICK = {"OUTRIDER_PEERS__PATIENCE_S": "3"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in which tokens follow from the four before, so that drafts are good and bad."""
    draw = np.random.default_rng(3)
    keys = [""]
    for order in range(1, 5):
        keys += [",".join(map(str, index)) for index in np.ndindex(*[4] * order)]
    rows = {key: (3.0 * draw.standard_normal(4)).tolist() for key in keys}
    file = tmp_path_factory.mktemp("table") / "target.json"
    model = {"vocab_size": 4, "order": 4, "eos": [], "logits": rows, "context_length": 8192}
    file.write_text(json.dumps(model))
    return file


@pytest.fixture(scope="module")
def bad_table(table: Path) -> Path:
    """A draft that is often wrong."""
    values = json.loads(table.read_text())
    draw = np.random.default_rng(4)
    values["logits"] = {
        key: (np.array(row) + 2.0 * draw.standard_normal(4)).tolist()
        for key, row in values["logits"].items()
    }
    file = table.with_name("draft.json")
    file.write_text(json.dumps(values))
    return file


@pytest.fixture(scope="module")
def undisturbed(table: Path) -> Callable[[str], str]:
    """Text of the long output, from the target alone in this process."""

    async def decode(sampling: SamplingParams) -> str:
        alone = TableTarget(TableModel.load(table), model_id="target")
        pipeline = Pipeline(alone, await alone.describe(), {}, settings(), Metrics())
        return " ".join(map(str, await run(pipeline, pipeline.session(PROMPT, sampling))))

    texts = {
        name: asyncio.run(decode(SamplingParams(max_tokens=LONG, **options)))
        for name, options in SAMPLINGS.items()
    }
    return texts.__getitem__


def _same(answer: Answer, expected: str) -> bool:
    return answer.error is None and answer.text.split() == expected.split()


def _both(front: Part, undisturbed: Callable[[str], str], on_piece: Callable[[int], None]) -> bool:
    """Whether a greedy and a seeded output, at once and both disturbed, are what they should be."""
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: complete(front, max_tokens=LONG, **SAMPLINGS["seeded"]))
        greedy = complete(front, max_tokens=LONG, on_piece=on_piece)
        return _same(greedy, undisturbed("greedy")) and _same(other.result(), undisturbed("seeded"))


def _at(piece: int, act: Callable[[], None]) -> Callable[[int], None]:
    """Does `act` once, when so many pieces have come."""

    def on_piece(pieces: int) -> None:
        if pieces == piece:
            act()

    return on_piece


@pytest.fixture(scope="module")
def deployment(table: Path, bad_table: Path) -> Iterator[Deployment]:
    """For tests that leave it as it was."""
    with deploy(table, "ngram", draft_table=bad_table) as deployed:
        yield deployed


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_output_is_that_of_the_target_alone(deployment, undisturbed, sampling) -> None:
    near_the_target = {"speculation": {"drafter": "ngram"}}
    for options in ({}, near_the_target):
        answer = complete(deployment.front, max_tokens=LONG, **SAMPLINGS[sampling], **options)
        assert _same(answer, undisturbed(sampling))
    assert deployment.front.metric("spec_decode_num_accepted_tokens_total") > 0
    assert deployment.all_given_back()


def test_many_sessions_at_once_leave_no_descriptor_behind(deployment, undisturbed) -> None:
    expected = " ".join(undisturbed("greedy").split()[:300])

    def wave() -> list[int]:
        with ThreadPoolExecutor(16) as pool:
            answers = pool.map(lambda _: complete(deployment.front, max_tokens=300), range(32))
        assert all(_same(answer, expected) for answer in answers)
        assert deployment.all_given_back()
        return [each.descriptors() for each in deployment.parts]

    before = wave()  # what pools keep for the next time

    def not_more() -> bool:
        return all(now <= most + 4 for now, most in zip(wave(), before, strict=True))

    assert settles(not_more)


def _drafted_again(deployed: Deployment, undisturbed: Callable[[str], str]) -> bool:
    def drafted() -> bool:
        before = deployed.front.metric("spec_decode_num_drafts_total")
        assert _same(complete(deployed.front, max_tokens=LONG), undisturbed("greedy"))
        return deployed.front.metric("spec_decode_num_drafts_total") > before + 20

    return settles(drafted, within_s=60)


def test_a_killed_draft_server_costs_no_token(table, bad_table, undisturbed) -> None:
    with deploy(table, draft_table=bad_table) as deployed:
        kill = _at(100, deployed.drafts.kill)
        assert _both(deployed.front, undisturbed, kill)
        assert deployed.front.metric("outrider_draft_failures_total") >= 1
        assert deployed.all_given_back()


def test_a_stopped_draft_server_costs_no_token_and_serves_again_when_it_goes_on(
    table, bad_table, undisturbed
) -> None:
    with deploy(table, draft_table=bad_table) as deployed:
        stop = _at(100, lambda: deployed.drafts.signal(signal.SIGSTOP))
        answer = complete(deployed.front, max_tokens=LONG, on_piece=stop)
        assert _same(answer, undisturbed("greedy"))
        deployed.drafts.signal(signal.SIGCONT)
        assert _drafted_again(deployed, undisturbed)


def test_a_restarted_draft_server_is_used_again(table, bad_table, undisturbed) -> None:
    with deploy(table, draft_table=bad_table) as deployed:
        deployed.drafts.kill()
        assert _same(complete(deployed.front, max_tokens=LONG), undisturbed("greedy"))
        with draft(bad_table, port=deployed.drafts.port):
            assert _drafted_again(deployed, undisturbed)


def test_a_killed_target_is_replaced_by_another_in_mid_stream(
    table, bad_table, undisturbed
) -> None:
    with deploy(table, targets=2, draft_table=bad_table) as deployed:
        kill = _at(20, lambda: deployed.busy.signal(signal.SIGKILL))
        assert _both(deployed.front, undisturbed, kill)
        assert deployed.front.metric("outrider_sessions_reopened_total") >= 1
        assert deployed.all_given_back()


def test_a_killed_target_with_no_other_ends_the_request_with_an_error(table) -> None:
    with deploy(table, settings=QUICK) as deployed:
        kill = _at(20, deployed.behind.kill)
        answer = complete(deployed.front, max_tokens=LONG, on_piece=kill)
        assert answer.error is not None
        assert "target" in answer.error
        before_the_first_byte = complete(deployed.front, max_tokens=10)
        assert before_the_first_byte.status in (502, 503)
        assert deployed.all_given_back()


def test_a_target_that_is_restarted_goes_on_where_it_was(table, undisturbed) -> None:
    with deploy(table) as deployed, ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        port = deployed.behind.port

        def restart() -> None:
            deployed.behind.kill()
            again = target(table, port=port)
            started.append(pool.submit(lambda: stack.enter_context(again)))

        started: list[Future[Part]] = []
        assert _both(deployed.front, undisturbed, _at(20, restart))
        assert deployed.front.metric("outrider_sessions_reopened_total") >= 1
        deployed.targets = [started[0].result()]
        assert deployed.all_given_back()


def test_a_gateway_told_to_stop_finishes_its_streams(table, undisturbed) -> None:
    with deploy(table) as deployed:
        stop = _at(20, lambda: deployed.front.signal(signal.SIGTERM))
        answer = complete(deployed.front, max_tokens=LONG, on_piece=stop)
        assert _same(answer, undisturbed("greedy"))
        assert deployed.front.process.wait(timeout=30) == 0
        assert settles(lambda: deployed.behind.metric("outrider_target_sessions") == 0)


def test_a_killed_gateway_leaves_no_session_at_the_target(table) -> None:
    with deploy(table, settings={"OUTRIDER_TARGET_SERVER__LEASE_S": "0.5"}) as deployed:
        kill = _at(20, deployed.front.kill)
        with pytest.raises(httpx.TransportError):
            complete(deployed.front, max_tokens=LONG, on_piece=kill)
        assert settles(lambda: deployed.behind.metric("outrider_target_sessions") == 0)


def test_a_target_told_to_stop_hands_its_sessions_to_the_other(table, undisturbed) -> None:
    at_once = {"OUTRIDER_TARGET_SERVER__DRAIN_S": "0"}
    with deploy(table, targets=2, settings=at_once) as deployed:
        stop = _at(20, lambda: deployed.busy.signal(signal.SIGTERM))
        answer = complete(deployed.front, max_tokens=LONG, on_piece=stop)
        assert _same(answer, undisturbed("greedy"))
        assert deployed.front.metric("outrider_sessions_reopened_total") >= 1


def test_a_reset_connection_costs_no_token_and_no_session(table, undisturbed) -> None:
    with deploy(table, delay_s=0.0) as deployed:
        (wire,) = deployed.wires
        before = wire.connections
        cut = _at(20, wire.cut)
        assert _both(deployed.front, undisturbed, cut)
        assert wire.connections > before
        assert deployed.front.metric("outrider_sessions_reopened_total") == 0  # still held
        assert deployed.all_given_back()


def test_a_connection_that_stalls_is_noticed_and_replaced(table, undisturbed) -> None:
    with deploy(table, targets=2, delay_s=0.0) as deployed:

        def stall() -> None:
            deployed.wires[deployed.targets.index(deployed.busy)].stall()

        answer = complete(deployed.front, max_tokens=LONG, on_piece=_at(20, stall))
        assert _same(answer, undisturbed("greedy"))
        assert deployed.front.metric("outrider_sessions_reopened_total") >= 1


def test_a_network_that_takes_its_time_changes_nothing(table, undisturbed) -> None:
    with deploy(table, "ngram", delay_s=0.005) as deployed:
        for place in ("target", "gateway"):
            with gateway(
                [each.address for each in deployed.wires],
                "ngram",
                settings={"OUTRIDER_SPECULATION__DRAFT_AT": place},
            ) as front:
                answer = complete(front, max_tokens=200, **SAMPLINGS["seeded"])
                assert _same(answer, " ".join(undisturbed("seeded").split()[:200]))
