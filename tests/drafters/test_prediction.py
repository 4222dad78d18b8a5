from __future__ import annotations

import random
import time

import pytest

from outrider.drafters import NgramDrafter, SessionView
from outrider.drafters.prediction import PREDICTION, PredictionDrafter
from outrider.types import NO_DRAFT, Draft, DrafterInfo, SamplingParams

pytestmark = pytest.mark.anyio

PROMPT = [900, 901]
PREDICTED = tuple(range(100, 200))


class Other:
    """A drafter that always drafts 1s, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.released: list[str] = []
        self.closed = False

    async def describe(self) -> DrafterInfo:
        return DrafterInfo(name="other")

    async def propose(self, view: SessionView, max_tokens: int) -> Draft:
        self.asked.append(max_tokens)
        return Draft((1,) * max_tokens, "other")

    async def release(self, session_id: str) -> None:
        self.released.append(session_id)

    async def close(self) -> None:
        self.closed = True


def view(output: list[int]) -> SessionView:
    tokens = [*PROMPT, *output]
    return SessionView("s", tokens, len(tokens), len(PROMPT), SamplingParams(), noise_key=0)


def drafter(prediction=PREDICTED, **info) -> PredictionDrafter:
    return PredictionDrafter(tuple(prediction), (Other(), DrafterInfo(name="other", **info)))


async def after(*outputs: list[int], k: int = 8, prediction=PREDICTED) -> Draft:
    """What is drafted behind the last of these outputs, each of which goes on from the others."""
    made = drafter(prediction)
    draft = NO_DRAFT
    for output in outputs:
        draft = await made.propose(view(output), k)
    return draft


async def rounds(output: list[int], prediction: list[int], k: int = 8) -> list[int]:
    """Tokens of each round until `output` is complete; the first token comes alone."""
    made, done, lengths = drafter(prediction), 1, []
    while done < len(output):
        draft = await made.propose(view(output[:done]), min(k, len(output) - done - 1))
        accepted = 0
        while (
            accepted < len(draft.token_ids) and draft.token_ids[accepted] == output[done + accepted]
        ):
            accepted += 1
        lengths.append(accepted + 1)
        done += accepted + 1
    return lengths


async def test_at_first_the_beginning_of_the_prediction_is_drafted() -> None:
    draft = await after([])
    assert draft == Draft(PREDICTED[:8], PREDICTION)


async def test_while_the_output_follows_the_prediction_goes_on() -> None:
    draft = await after([100], [100, 101, 102, 103], k=3)
    assert draft.token_ids == (104, 105, 106)


async def test_at_its_end_the_other_drafter_takes_over() -> None:
    whole = list(PREDICTED)
    assert (await after(whole[:-2])).token_ids == (198, 199)
    assert (await after(whole)).source == "other"


async def test_without_a_trace_of_the_prediction_the_other_drafter_drafts() -> None:
    draft = await after([5], [5, 6, 7, 8, 9])
    assert draft == Draft((1,) * 8, "other")


async def test_an_empty_prediction_has_nothing_to_say() -> None:
    assert (await after([], prediction=())).source == "other"


async def test_behind_a_substituted_token_one_token_of_agreement_is_enough() -> None:
    begun = list(PREDICTED[:20])
    assert (await after(begun, [*begun, 5])).source == "other"
    draft = await after(begun, [*begun, 5], [*begun, 5, 121])
    assert draft == Draft((122, 123, 124, 125), PREDICTION)


async def test_behind_an_insertion_it_goes_on_where_the_output_left() -> None:
    begun = list(PREDICTED[:20])
    inserted = [*begun, 5, 6, 7, 8, 9]
    draft = await after(begun, inserted, [*inserted, 120, 121])
    assert draft.token_ids == (122, 123, 124, 125)


async def test_behind_a_short_deletion_it_skips_what_was_deleted() -> None:
    begun = list(PREDICTED[:20])
    draft = await after(begun, [*begun, 128])
    assert draft.token_ids == (129, 130, 131, 132)


async def test_behind_a_long_deletion_four_tokens_of_agreement_find_the_place() -> None:
    begun = list(PREDICTED[:20])
    cut = [*begun, 170, 171, 172]
    assert (await after(begun, cut)).source == "other"
    assert (await after(begun, [*cut, 173])).token_ids == tuple(range(174, 182))


async def test_of_several_places_that_agree_alike_the_nearest_ahead_counts() -> None:
    line = [1, 2, 3, 4]
    prediction = [*line, 10, *line, 20, *line, 30, *line, 40]
    begun = prediction[:7]
    draft = await after(begun, [*begun, 77, *line], prediction=prediction, k=1)
    assert draft.token_ids == (30,)


async def test_what_the_output_says_again_is_found_behind() -> None:
    begun = list(PREDICTED[:60])
    draft = await after(begun, [*begun, 5, *PREDICTED[30:36]])
    assert draft.token_ids == tuple(range(136, 144))


async def test_a_place_that_was_only_guessed_does_not_mislead_the_search_for_the_next() -> None:
    begun = list(PREDICTED[:20])
    guessed = [*begun, 135]  # the same token as 15 places ahead, by chance
    draft = await after(begun, guessed, [*guessed, 5, 120], k=2)
    assert draft.token_ids == (121, 122)


async def test_an_output_that_is_the_prediction_takes_one_round_in_nine_tokens() -> None:
    assert await rounds(list(PREDICTED), list(PREDICTED)) == [9] * 11


async def test_edits_cost_a_few_rounds_each() -> None:
    output = [*PREDICTED[:30], 5, *PREDICTED[31:50], 6, 7, 8, *PREDICTED[50:60], *PREDICTED[80:]]
    taken = await rounds(output, list(PREDICTED))
    assert sum(taken) == len(output) - 1
    assert len(taken) <= 24  # 10 without edits, 82 without drafts


async def test_a_random_prediction_costs_no_more_than_the_other_drafter() -> None:
    draw = random.Random(2)
    output = [draw.randrange(1000, 50_000) for _ in range(200)]
    prediction = [draw.randrange(1000, 50_000) for _ in range(5000)]
    made, drafted = drafter(prediction), 0
    for done in range(1, 200):
        draft = await made.propose(view(output[:done]), 8)
        drafted += draft.source == PREDICTION
    assert drafted <= 5


@pytest.mark.parametrize("kind", ["one token", "two tokens", "counting"])
async def test_a_huge_prediction_is_searched_in_bounded_time(kind: str) -> None:
    draw = random.Random(3)
    size = 100_000
    prediction = {
        "one token": [7] * size,
        "two tokens": [draw.randrange(2) for _ in range(size)],
        "counting": list(range(size)),
    }[kind]
    made = drafter(prediction)
    spent = []
    output: list[int] = []
    for _ in range(100):
        output.append(7 if draw.random() < 0.8 else 8)
        asked = view(output)
        begun = time.thread_time()
        await made.propose(asked, 8)
        spent.append(time.thread_time() - begun)
    assert sorted(spent)[50] < 2e-3


async def test_the_other_drafter_is_not_asked_beyond_its_own_context() -> None:
    other = Other()
    made = PredictionDrafter((), (other, DrafterInfo(name="other", context_length=6)))
    assert len(await made.propose(view([1, 2]), 8)) == 2
    assert await made.propose(view([1, 2, 3, 4]), 8) is NO_DRAFT
    assert other.asked == [2]


async def test_it_says_what_the_other_says_but_draws_nothing_and_has_no_limit() -> None:
    made = drafter(declares=True, ahead=True, context_length=10, model_hash="h")
    assert made.info == DrafterInfo(name="other", model_hash="h")
    assert await made.describe() == made.info


async def test_the_other_drafter_is_released_with_the_session_but_not_closed() -> None:
    other = Other()
    made = PredictionDrafter(PREDICTED, (other, DrafterInfo(name="other")))
    await made.release("s")
    await made.close()
    assert other.released == ["s"]
    assert not other.closed


async def test_the_other_drafter_reads_on_from_wherever_it_was() -> None:
    ngram = NgramDrafter()
    made = PredictionDrafter((1, 2, 3), (ngram, await ngram.describe()))
    assert (await made.propose(view([1]), 2)).source == PREDICTION
    draft = await made.propose(view([1, 2, 3, 8, 9, 4, 8, 9]), 1)
    assert draft == Draft((4,), "ngram", match=2)
