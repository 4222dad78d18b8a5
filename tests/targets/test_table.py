from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace

import pytest

from outrider.errors import CorruptModel, Overloaded, SessionLost, StaleRound, UnknownModel
from outrider.models import TableModel
from outrider.targets import OpenRequest, TableTarget
from outrider.types import NO_DRAFT, Draft, FinishReason, SamplingParams

pytestmark = pytest.mark.anyio

GREEDY = SamplingParams(temperature=0.0, max_tokens=20)


@pytest.fixture
def target(tmp_path) -> TableTarget:
    """Greedy output counts up: 0 1 2 3 4 (4 ends the output)."""
    rows = {str(i): [float(j == i + 1) for j in range(5)] for i in range(5)}
    file = tmp_path / "count.json"
    file.write_text(
        json.dumps(
            {"vocab_size": 5, "order": 1, "eos": [4], "logits": {"": [1, 0, 0, 0, 0], **rows}}
        )
    )
    return TableTarget(TableModel.load(file), model_id="count", max_sessions=2)


def request(session_id: str = "s", sampling: SamplingParams = GREEDY, **other) -> OpenRequest:
    defaults = {"epoch": 0, "prompt_ids": (0,), "output_ids": (), "noise_key": 1}
    return OpenRequest(session_id=session_id, sampling=sampling, **(defaults | other))


async def answers(target, *args):
    async with aclosing(target.advance(*args)) as stream:
        return [answer async for answer in stream]


async def test_a_right_draft_is_accepted_and_followed_by_a_bonus_token(target) -> None:
    await target.open(request())
    (answer,) = await answers(target, "s", 1, 0, Draft((1, 2)), 0)
    assert (answer.token_ids, answer.accepted, answer.drafted) == ((1, 2, 3), 2, 2)


async def test_a_wrong_token_is_replaced_and_the_rest_dropped(target) -> None:
    await target.open(request())
    (answer,) = await answers(target, "s", 1, 0, Draft((1, 0, 3)), 0)
    assert (answer.token_ids, answer.accepted, answer.drafted) == ((1, 2), 1, 3)


async def test_it_runs_on_alone_one_answer_a_token(target) -> None:
    await target.open(request())
    found = await answers(target, "s", 1, 0, Draft((1,)), 1)
    assert [answer.token_ids for answer in found] == [(1, 2), (3,)]
    assert [answer.position for answer in found] == [0, 2]


async def test_the_output_ends_at_eos_and_not_a_token_later(target) -> None:
    await target.open(request())
    found = await answers(target, "s", 1, 0, Draft((1, 2, 3, 4, 0, 1)), 9)
    assert [answer.token_ids for answer in found] == [(1, 2, 3, 4)]
    assert found[0].finish_reason is FinishReason.STOP


async def test_ignore_eos_runs_past_the_end(target) -> None:
    await target.open(request(sampling=replace(GREEDY, ignore_eos=True, max_tokens=6)))
    found = await answers(target, "s", 1, 0, NO_DRAFT, 9)
    assert len(found) == 6
    assert found[-1].finish_reason is FinishReason.LENGTH


async def test_the_budget_cuts_an_accepted_draft(target) -> None:
    await target.open(request(sampling=replace(GREEDY, max_tokens=2)))
    (answer,) = await answers(target, "s", 1, 0, Draft((1, 2, 3)), 5)
    assert answer.token_ids == (1, 2)
    assert answer.finish_reason is FinishReason.LENGTH


async def test_eos_on_the_last_token_of_the_budget_counts_as_stop(target) -> None:
    await target.open(request(sampling=replace(GREEDY, max_tokens=4)))
    (answer,) = await answers(target, "s", 1, 0, Draft((1, 2, 3, 4)), 0)
    assert answer.finish_reason is FinishReason.STOP


async def test_a_stop_token_of_the_request_ends_the_output(target) -> None:
    await target.open(request(sampling=replace(GREEDY, stop_token_ids=frozenset({2}))))
    found = await answers(target, "s", 1, 0, NO_DRAFT, 9)
    assert [token for answer in found for token in answer.token_ids] == [1, 2]


async def test_asking_for_a_round_again_repeats_its_answers_whatever_the_draft(target) -> None:
    await target.open(request())
    first = await answers(target, "s", 1, 0, Draft((1, 0)), 0)
    assert await answers(target, "s", 1, 0, Draft((3, 3, 3)), 0) == first


async def test_a_round_cut_short_is_completed_when_asked_for_again(target) -> None:
    await target.open(request())
    async with aclosing(target.advance("s", 1, 0, Draft((1,)), 2)) as stream:
        first = await anext(stream)
    found = await answers(target, "s", 1, 0, Draft((1,)), 2)
    assert found[0] == first
    assert [token for answer in found for token in answer.token_ids] == [1, 2, 3, 4]


async def test_an_older_round_is_stale(target) -> None:
    await target.open(request())
    await answers(target, "s", 5, 0, NO_DRAFT, 0)
    with pytest.raises(StaleRound, match="round 4"):
        await answers(target, "s", 4, 0, NO_DRAFT, 0)


async def test_what_was_decoded_beyond_the_position_is_undone(target) -> None:
    await target.open(request())
    await answers(target, "s", 1, 0, NO_DRAFT, 2)
    (answer,) = await answers(target, "s", 2, 1, NO_DRAFT, 0)
    assert (answer.position, answer.token_ids) == (1, (2,))


async def test_a_position_that_is_not_held_means_the_session_is_lost(target) -> None:
    await target.open(request())
    with pytest.raises(SessionLost, match="holds 0 output tokens"):
        await answers(target, "s", 1, 3, NO_DRAFT, 0)


async def test_a_negative_position_means_the_session_is_lost(target) -> None:
    await target.open(request())
    with pytest.raises(SessionLost, match="not -1"):
        await answers(target, "s", 1, -1, NO_DRAFT, 0)


async def test_behind_the_end_there_is_nothing(target) -> None:
    await target.open(request())
    await answers(target, "s", 1, 0, NO_DRAFT, 9)
    assert await answers(target, "s", 2, 4, NO_DRAFT, 9) == []


async def test_a_round_that_was_superseded_goes_no_further(target) -> None:
    await target.open(request())
    async with aclosing(target.advance("s", 1, 0, NO_DRAFT, 9)) as old:
        await anext(old)
        await answers(target, "s", 2, 1, NO_DRAFT, 0)
        with pytest.raises(StaleRound):
            await anext(old)


async def test_opening_a_session_again_takes_no_second_place(target) -> None:
    for epoch in range(5):
        await target.open(request(epoch=epoch))
    assert target.occupancy() == (1, 2)


async def test_an_unknown_session_is_lost(target) -> None:
    with pytest.raises(SessionLost, match="nobody"):
        await answers(target, "nobody", 1, 0, NO_DRAFT, 0)


async def test_a_reopened_session_continues_from_its_committed_output(target) -> None:
    await target.open(request(output_ids=(1, 2), epoch=1))
    (answer,) = await answers(target, "s", 1, 2, NO_DRAFT, 0)
    assert answer.token_ids == (3,)


async def test_sessions_beyond_the_limit_are_refused_until_one_is_released(target) -> None:
    await target.open(request("a"))
    await target.open(request("b"))
    with pytest.raises(Overloaded):
        await target.open(request("c"))
    await target.release("a")
    await target.release("a")
    await target.open(request("c"))
    assert target.occupancy() == (2, 2)


GOOD = {"vocab_size": 2, "order": 1, "eos": [1], "logits": {"": [0, 0], "1": [0, None]}}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"logits": {"0": [0, 0]}}, 'no default row; add the key ""'),
        ({"logits": {"": [0, 0, 0]}}, "3 logits under ''"),
        ({"logits": {"": [0, 0], "0,1": [0, 0]}}, "longer than its order 1"),
        ({"logits": {"": [0, 0], "7": [0, 0]}}, "the key '7'; ids lie in 0..1"),
        ({"logits": {"": [0, 0], "x": [0, 0]}}, "the key 'x'"),
        ({"logits": {"": [None, None]}}, "excludes every token"),
        ({"eos": [5]}, "eos 5"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"temperature": 1}, "temperature"),
    ],
)
async def test_a_faulty_table_is_refused_with_the_place(tmp_path, change, complaint) -> None:
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(GOOD | change))
    with pytest.raises(CorruptModel) as caught:
        TableModel.load(file)
    assert complaint in str(caught.value)
    assert "bad.json" in str(caught.value)


async def test_a_table_that_is_not_json_or_not_there_is_refused(tmp_path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(CorruptModel, match="not a table"):
        TableModel.load(tmp_path / "bad.json")
    with pytest.raises(UnknownModel, match=r"nowhere\.json"):
        TableModel.load(tmp_path / "nowhere.json")


async def test_the_longest_matching_context_wins(tmp_path) -> None:
    table = {"vocab_size": 2, "order": 2, "logits": {"": [0, 0], "1": [1, 0], "0,1": [2, 0]}}
    (tmp_path / "t.json").write_text(json.dumps(table))
    model = TableModel.load(tmp_path / "t.json")
    assert [model.logits(tokens, len(tokens))[0] for tokens in ([0], [1, 1], [0, 1], [])] == [
        0,
        1,
        2,
        0,
    ]
