import numpy as np
import pytest
import torch

from outrider.errors import TrainingError
from outrider.train.records import Example, Source
from outrider.train.rows import (
    NEVER,
    TeacherRows,
    acceptance_bounds,
    draft_ids_of,
    draft_on_support,
    example_rows,
    teacher_rows,
)

N, V, K = 6, 40, 7
SOURCE = Source("toy", "0" * 64, "f", V, (0,), temperatures=(0.5, 1.0), k=K)


def _logits(seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(N, V, generator=torch.Generator().manual_seed(seed)) * scale


def _example(logits: torch.Tensor) -> Example:
    values, ids = torch.topk(logits, K)
    generated = np.asarray([False] + [True] * N)
    return Example(
        id="a",
        category="c",
        token_ids=np.arange(N + 1, dtype=np.int32),
        generated=generated,
        support_ids=ids.numpy().astype(np.int32),
        support_logits=values.numpy(),
        logsumexps=np.stack(
            [torch.logsumexp(logits / t, 1).numpy() for t in SOURCE.temperatures], axis=1
        ),
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_rows_of_an_example_are_the_targets_probabilities_at_that_temperature(
    temperature: float,
) -> None:
    logits = _logits()
    rows = example_rows(_example(logits), SOURCE, temperature)
    dense = torch.softmax(logits.double() / temperature, 1)
    support = dense.gather(1, rows.support_ids)
    torch.testing.assert_close(rows.log_probs.exp().double(), support, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(
        rows.log_tail.exp().double(), 1 - support.sum(1), atol=1e-6, rtol=1e-3
    )


def test_at_temperature_0_a_row_is_the_greedy_choice() -> None:
    logits = _logits()
    rows = example_rows(_example(logits), SOURCE, 0.0)
    assert rows.argmax().tolist() == logits.argmax(1).tolist()
    assert rows.log_probs.exp().sum(1).tolist() == [1.0] * N
    assert rows.log_tail.tolist() == [-torch.inf] * N


def test_a_temperature_without_normalisers_is_refused_with_those_that_have_them() -> None:
    with pytest.raises(TrainingError, match=r"temperature 0\.7, only at 0\.5, 1 and 0"):
        example_rows(_example(_logits()), SOURCE, 0.7)


def test_a_support_with_more_than_all_mass_is_scaled_back_and_has_no_tail() -> None:
    # As float16 storage may leave it: 0.6 + 0.41.
    logits = torch.log(torch.tensor([[0.6, 0.41]]))
    rows = teacher_rows(torch.tensor([[3, 1]]), logits, torch.zeros(1), 1.0)
    assert rows.log_probs.exp().sum().item() == pytest.approx(1.0, abs=1e-6)
    assert rows.log_tail.item() < -14


def test_a_tiny_tail_is_not_lost_to_rounding_into_nan() -> None:
    logits = torch.tensor([[0.0, -40.0]])
    rows = teacher_rows(torch.tensor([[0, 1]]), logits, torch.zeros(1), 1.0)
    assert not rows.log_tail.isnan().any()
    assert rows.log_tail.exp().item() == 0.0


def test_ids_that_the_draft_lacks_become_minus_1_and_keep_their_probability() -> None:
    rows = example_rows(_example(_logits()), SOURCE, 1.0)
    target_ids = torch.arange(0, V, 2)
    ours = rows.translated(draft_ids_of(target_ids, V))
    odd = rows.support_ids % 2 == 1
    assert odd.any()
    assert (ours.support_ids[odd] == -1).all()
    assert torch.equal(target_ids[ours.support_ids[~odd]], rows.support_ids[~odd])
    assert torch.equal(ours.log_probs, rows.log_probs)
    assert torch.equal(ours.translated(torch.arange(V)).support_ids, ours.support_ids)


def test_draft_ids_that_stand_for_nothing_are_nobodys_translation() -> None:
    assert draft_ids_of(torch.tensor([-1, 3, 0, -1]), 5).tolist() == [2, -1, -1, 1, -1]


def test_a_draft_made_for_a_larger_target_is_refused() -> None:
    with pytest.raises(TrainingError, match="token 7 of a target that has 5"):
        draft_ids_of(torch.tensor([0, 7]), 5)


def test_a_likeliest_token_that_the_draft_lacks_is_minus_1() -> None:
    rows = TeacherRows(
        torch.tensor([[-1, 2], [4, -1]]),
        torch.log(torch.tensor([[0.6, 0.3], [0.6, 0.3]])),
        torch.log(torch.tensor([0.1, 0.1])),
    )
    assert rows.argmax().tolist() == [-1, 4]


def test_rows_can_be_cut_and_joined() -> None:
    rows = example_rows(_example(_logits()), SOURCE, 1.0)
    joined = TeacherRows.cat([rows[:2], rows[2:]]).to("cpu")
    assert len(joined) == N
    assert torch.equal(joined.support_ids, rows.support_ids)
    assert torch.equal(joined.log_probs, rows.log_probs)
    assert torch.equal(joined.log_tail, rows.log_tail)


def test_a_drafts_row_on_a_support_has_its_probabilities_and_the_rest() -> None:
    scores = _logits(1).double()
    ids = torch.topk(_logits(), K).indices
    ids[:, 2] = -1
    log_draft, normaliser = draft_on_support(scores, ids)
    dense = torch.softmax(scores, 1)
    inside = ids >= 0
    expected = dense.gather(1, ids.clamp(min=0)) * inside
    torch.testing.assert_close(log_draft[:, :-1].exp(), expected)
    torch.testing.assert_close(log_draft[:, -1].exp(), 1 - expected.sum(1))
    torch.testing.assert_close(normaliser, torch.logsumexp(scores, 1))


def test_the_rest_is_exact_where_the_support_has_nearly_all() -> None:
    scores = torch.tensor([[60.0, 0.0, 0.0]])
    log_draft, _ = draft_on_support(scores, torch.tensor([[0]]))
    assert log_draft[0, 1].item() == pytest.approx(-60 + np.log(2), abs=1e-4)


def test_a_support_of_everything_leaves_no_rest() -> None:
    log_draft, _ = draft_on_support(_logits(), torch.arange(V).repeat(N, 1))
    assert (log_draft[:, -1] < NEVER / 2).all()
    assert log_draft[:, :-1].exp().sum(1).allclose(torch.ones(N))


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_acceptance_lies_within_its_bounds(seed: int, trimmed: bool) -> None:
    target = _logits(seed, 1.0)
    kept = torch.arange(0, V, 3) if trimmed else torch.arange(V)
    scores = (target + _logits(seed + 50, 0.7))[:, kept]
    rows = example_rows(_example(target), SOURCE, 1.0).translated(draft_ids_of(kept, V))
    lower, upper = acceptance_bounds(rows, scores)
    dense = torch.minimum(torch.softmax(target, 1)[:, kept], torch.softmax(scores, 1)).sum(1)
    assert (lower <= dense + 1e-5).all()
    assert (dense <= upper + 1e-5).all()
    assert (lower < upper).all()
