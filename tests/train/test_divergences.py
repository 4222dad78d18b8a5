import pytest
import torch

from outrider.train.divergences import (
    forward_kl,
    jensen_shannon,
    likelihood_kl,
    lost_acceptance,
    negative_log_acceptance,
    reverse_kl,
    share,
)
from outrider.train.rows import NEVER

TARGET = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
DRAFT = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)


def _kl(p: torch.Tensor, q: torch.Tensor) -> float:
    return float((p * (p / q).log()).sum())


def _log(probs: torch.Tensor) -> torch.Tensor:
    return probs.log().clamp(min=NEVER)


def test_forward_kl_is_from_the_target_to_the_draft() -> None:
    rows = share(TARGET.log(), _log(DRAFT), 3)
    assert forward_kl(rows).item() == pytest.approx(_kl(TARGET, DRAFT))
    assert _kl(TARGET, DRAFT) != pytest.approx(_kl(DRAFT, TARGET), rel=0.05)


def test_reverse_kl_is_from_the_draft_to_the_target() -> None:
    rows = share(TARGET.log(), _log(DRAFT), 3)
    assert reverse_kl(rows).item() == pytest.approx(_kl(DRAFT, TARGET))


def test_jensen_shannon_is_the_mean_divergence_from_the_middle() -> None:
    rows = share(TARGET.log(), _log(DRAFT), 3)
    middle = (TARGET + DRAFT) / 2
    expected = (_kl(TARGET, middle) + _kl(DRAFT, middle)) / 2
    assert jensen_shannon(rows).item() == pytest.approx(expected)


def test_lost_acceptance_is_total_variation() -> None:
    rows = share(TARGET.log(), _log(DRAFT), 3)
    assert lost_acceptance(rows).item() == pytest.approx((TARGET - DRAFT).abs().sum().item() / 2)


def test_negative_log_acceptance_is_the_logarithm_of_the_common_mass() -> None:
    rows = share(TARGET.log(), _log(DRAFT), 3)
    assert negative_log_acceptance(rows).exp().item() == pytest.approx(1 / 0.5)


def test_lk_weighs_kl_by_how_far_the_draft_is_off() -> None:
    rows = share(TARGET.log(), _log(DRAFT), 3)
    weight = float(torch.exp(torch.tensor(-3 * 0.5)))
    expected = weight * _kl(TARGET, DRAFT) + (1 - weight) * 0.5
    assert likelihood_kl(rows, 3.0).item() == pytest.approx(expected)


LOSSES = [
    forward_kl,
    reverse_kl,
    jensen_shannon,
    lost_acceptance,
    negative_log_acceptance,
    lambda rows: likelihood_kl(rows, 3.0),
]


@pytest.mark.parametrize("loss", LOSSES)
def test_no_loss_is_left_for_the_best_draft_that_lacks_a_token(loss) -> None:  # type: ignore[no-untyped-def]
    best = torch.tensor([[0.7 / 0.9, 0.2 / 0.9, 0.0]], dtype=torch.float64)
    rows = share(TARGET.log(), _log(best), 3)
    assert rows.acceptance.item() == pytest.approx(0.9)
    assert rows.reach.item() == pytest.approx(0.9)
    assert loss(rows).item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_token_counts_by_what_the_draft_can_have_of_it(loss) -> None:  # type: ignore[no-untyped-def]
    def of(reach: float) -> float:
        target = torch.tensor([[0.6, 0.4]], dtype=torch.float64) * reach
        target = torch.cat((target, torch.tensor([[1 - reach]], dtype=torch.float64)), 1)
        draft = torch.tensor([[0.999, 0.001, 0.0]], dtype=torch.float64)
        return float(loss(share(target.log(), _log(draft), 3)))

    assert 0 < of(0.1) < of(0.5) < of(0.9)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_token_of_which_the_draft_can_have_nothing_has_neither_loss_nor_gradient(loss) -> None:  # type: ignore[no-untyped-def]
    target = torch.tensor([[0.0, 0.0, 1.0]])
    scores = torch.tensor([[0.3, 1.0]], requires_grad=True)
    draft = torch.cat((torch.log_softmax(scores, 1), torch.full((1, 1), NEVER)), 1)
    value = loss(share(target.log(), draft, 3)).sum()
    value.backward()
    assert value.item() == 0.0
    assert scores.grad is not None
    assert scores.grad.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_stay_finite_where_target_and_draft_have_nothing_in_common(loss) -> None:  # type: ignore[no-untyped-def]
    target = torch.tensor([[1.0, 0.0, 0.0]])
    scores = torch.tensor([[-200.0, 200.0, 0.0]], requires_grad=True)
    value = loss(share(target.log(), torch.log_softmax(scores, 1), 3)).sum()
    value.backward()
    assert torch.isfinite(value)
    assert value.item() > 0.5
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()


def test_the_logarithm_of_a_hopeless_acceptance_still_has_a_gradient() -> None:
    target = torch.tensor([[1.0, 0.0]])
    scores = torch.tensor([[-200.0, 200.0]], requires_grad=True)
    rows = share(target.log(), torch.log_softmax(scores, 1), 2)
    negative_log_acceptance(rows).sum().backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [[-1.0, 1.0]]


@pytest.mark.parametrize("loss", LOSSES[:3])
def test_merging_outcomes_into_a_bucket_never_raises_a_divergence(loss) -> None:  # type: ignore[no-untyped-def]
    whole = loss(share(TARGET.log(), _log(DRAFT), 3)).item()

    def merged(probs: torch.Tensor) -> torch.Tensor:
        return torch.stack((probs[:, 0], probs[:, 1:].sum(1)), 1)

    bucketed = loss(share(merged(TARGET).log(), _log(merged(DRAFT)), 1)).item()
    assert 0 < bucketed <= whole


def test_the_bucket_is_not_taken_for_acceptance() -> None:
    rows = share(TARGET.log(), _log(DRAFT), 2)
    assert rows.acceptance.item() == pytest.approx(0.4)
    assert rows.bucket.item() == pytest.approx(0.1)
    assert lost_acceptance(rows).item() == pytest.approx(0.6)
