from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from outrider.errors import ConfigError
from outrider.train.losses import (
    LossKind,
    LossSettings,
    LossSums,
    dense_loss,
    distillation_loss,
)
from outrider.train.rows import TeacherRows, draft_ids_of, teacher_rows

N, H, V, K = 9, 5, 23, 6
KINDS: tuple[LossKind, ...] = get_args(LossKind)


class Case:
    """N tokens with a teacher over V ids and a draft that has every id but some."""

    def __init__(self, seed: int = 0, *, trimmed: bool = False, n: int = N) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.teacher = normal(n, V) * 2
        self.kept = torch.arange(0, V, 2) if trimmed else torch.arange(V)
        self.hidden = normal(n, H).requires_grad_()
        self.weight = normal(len(self.kept), H).requires_grad_()
        self.draft_ids = draft_ids_of(self.kept, V)
        self.labels = self.draft_ids[torch.randint(V, (n,), generator=generator)]

    def rows(self, temperature: float = 1.0, k: int = K) -> TeacherRows:
        logits, ids = torch.topk(self.teacher, k)
        scaled = torch.logsumexp(self.teacher / temperature, 1)
        log_probs = logits / temperature - scaled[:, None]
        tail = (1 - log_probs.exp().sum(1)).clamp(min=0)
        # In float64, for exact comparison; `teacher_rows` itself is tested elsewhere.
        return TeacherRows(ids, log_probs, tail.log()).translated(self.draft_ids)

    def sparse(self, settings: LossSettings, k: int = K, chunk: int | None = None) -> LossSums:
        rows = self.rows(settings.teacher_temperature, k)
        n = len(self.labels)
        return distillation_loss(
            self.hidden, self.weight, rows, self.labels, settings, n, chunk=chunk
        )

    def dense(self, settings: LossSettings, chunk: int | None = None) -> LossSums:
        return dense_loss(
            self.hidden,
            self.weight,
            self.teacher,
            self.labels,
            settings,
            len(self.labels),
            target_ids=self.kept,
            chunk=chunk,
        )

    def gradients(self, loss: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss, (self.hidden, self.weight))


def _reference(case: Case, settings: LossSettings, k: int) -> Tensor:
    """Straight from the definitions, over all ids of the target at once."""
    at = settings.teacher_temperature
    target = torch.softmax(case.teacher / at, 1)
    logits = case.hidden @ case.weight.T
    draft = torch.zeros_like(target).index_copy(1, case.kept, torch.softmax(logits / at, 1))
    support = torch.topk(case.teacher, k).indices
    rest = torch.ones_like(target, dtype=torch.bool).scatter(1, support, False)
    has = torch.zeros(V, dtype=torch.bool)
    has[case.kept] = True

    def merged(probs: Tensor) -> Tensor:
        tail = (probs * rest).sum(1, keepdim=True)
        return torch.cat((probs.gather(1, support), tail), 1) if k < V else probs[:, :]

    p, q = merged(target), merged(draft)
    can = merged(has.expand_as(target).double()) > 0
    p = p * can
    reach = p.sum(1)
    p_can = p / reach[:, None]

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(a > 0, a * (a / b.clamp(min=1e-300)).log(), 0.0).sum(1)

    common = torch.minimum(p, q)
    acceptance = (common[:, :k] if k < V else common).sum(1)
    log_draft = torch.log_softmax(logits / settings.temperature, 1)
    ce = -log_draft.gather(1, case.labels.clamp(min=0)[:, None]).squeeze(1)
    ce = torch.where(case.labels >= 0, ce, 0.0)
    mean = (p_can + q) / 2
    weight = torch.exp(-settings.decay * (acceptance / reach).detach())
    values: dict[str, Tensor] = {
        "kl": reach * kl(p_can, q),
        "reverse_kl": reach * kl(q, p_can),
        "jsd": reach * (kl(p_can, mean) + kl(q, mean)) / 2,
        "tv": reach - acceptance,
        "log_alpha": -reach * (acceptance / reach).log(),
        "lk": weight * reach * kl(p_can, q) + (1 - weight) * (reach - acceptance),
        "ce": ce,
        "classic": settings.alpha * at**2 * reach * kl(p_can, q) + (1 - settings.alpha) * ce,
    }
    return values[settings.kind].mean()


def _same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sparse_loss_and_its_gradients_are_those_of_the_definition(
    kind: LossKind, temperature: float, trimmed: bool
) -> None:
    case = Case(trimmed=trimmed)
    settings = LossSettings(kind, temperature, kd_temperature=1.7)
    ours, theirs = case.sparse(settings, chunk=4).loss, _reference(case, settings, K)
    torch.testing.assert_close(ours, theirs)
    _same(case.gradients(ours), case.gradients(theirs))


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_dense_loss_and_its_gradients_are_those_of_the_definition(
    kind: LossKind, trimmed: bool
) -> None:
    case = Case(1, trimmed=trimmed)
    settings = LossSettings(kind, 0.8, kd_temperature=1.7)
    ours, theirs = case.dense(settings, chunk=4).loss, _reference(case, settings, V)
    torch.testing.assert_close(ours, theirs)
    _same(case.gradients(ours), case.gradients(theirs))


@pytest.mark.parametrize("kind", KINDS)
def test_a_support_of_the_whole_vocabulary_is_the_dense_loss(kind: LossKind) -> None:
    case = Case(2)
    settings = LossSettings(kind)
    sparse, dense = case.sparse(settings, k=V), case.dense(settings)
    torch.testing.assert_close(sparse.loss, dense.loss)
    torch.testing.assert_close(sparse.acceptance, dense.acceptance)
    assert sparse.agreements == dense.agreements
    _same(case.gradients(sparse.loss), case.gradients(dense.loss))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lk"])
def test_gradients_are_those_of_finite_differences(kind: LossKind) -> None:
    # All but LK, whose weight is held constant on purpose.
    case = Case(3, trimmed=True, n=4)

    def loss(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        settings, rows = LossSettings(kind), case.rows()
        return distillation_loss(
            hidden, weight, rows, case.labels, settings, 4, bias=bias, chunk=3
        ).loss

    bias = torch.randn(len(case.kept), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (case.hidden, case.weight, bias))


def test_the_gradient_of_kl_is_that_of_torchs_own_loss() -> None:
    case = Case(4)
    ours = case.dense(LossSettings("kl")).loss
    log_draft = torch.log_softmax(case.hidden @ case.weight.T, 1)
    theirs = functional.kl_div(log_draft, torch.softmax(case.teacher, 1), reduction="sum") / N
    torch.testing.assert_close(ours, theirs)
    _same(case.gradients(ours), case.gradients(theirs))


@pytest.mark.parametrize("make", [Case.sparse, Case.dense])
@pytest.mark.parametrize("chunk", [1, 2, N, 100])
def test_the_chunk_does_not_matter(make: Callable[..., LossSums], chunk: int) -> None:
    case = Case(5, trimmed=True)
    whole, cut = make(case, LossSettings()), make(case, LossSettings(), chunk=chunk)
    torch.testing.assert_close(whole.loss, cut.loss)
    torch.testing.assert_close(whole.cross_entropy, cut.cross_entropy)
    _same(case.gradients(whole.loss), case.gradients(cut.loss))


@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_of_8_is_4_batches_of_2(kind: LossKind) -> None:
    case = Case(6, n=8)
    hidden, weight = case.hidden.detach().float(), case.weight.detach().float().requires_grad_()
    rows = case.rows()

    def part(some: slice) -> Tensor:
        labels = case.labels[some]
        return distillation_loss(
            hidden[some], weight, rows[some], labels, LossSettings(kind), 8
        ).loss

    (whole,) = torch.autograd.grad(part(slice(8)), weight)
    for start in range(0, 8, 2):
        part(slice(start, start + 2)).backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, whole, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("num_items", [0, 7, torch.tensor(7)])
@pytest.mark.parametrize("make", [Case.sparse, Case.dense])
def test_a_batch_without_tokens_has_no_loss_and_gradients_of_0(
    make: Callable[..., LossSums], num_items: int | Tensor
) -> None:
    case = Case(n=0)
    sums = distillation_loss(
        case.hidden, case.weight, case.rows(), case.labels, LossSettings(), num_items
    )
    for each in (sums, make(case, LossSettings())):
        assert each.loss.item() == 0.0
        assert each.tokens == 0
        assert all((gradient == 0).all() for gradient in case.gradients(each.loss))


def test_the_teacher_gets_no_gradient() -> None:
    case = Case()
    case.teacher.requires_grad_()
    case.dense(LossSettings()).loss.backward()
    assert case.teacher.grad is None


def test_a_live_teacher_may_give_its_rows_piece_by_piece() -> None:
    case = Case(7)
    asked = []

    def rows(some: slice) -> Tensor:
        asked.append(some)
        return case.teacher[some]

    ours = dense_loss(case.hidden, case.weight, rows, case.labels, LossSettings(), N, chunk=4).loss
    torch.testing.assert_close(ours, case.dense(LossSettings()).loss)
    assert [some.start for some in asked] == [0, 4, 8]


def test_ids_that_are_never_drafted_have_no_probability_and_no_gradient() -> None:
    case = Case(8)
    padding = torch.zeros(V, dtype=torch.bool)
    padding[-4:] = True
    with torch.no_grad():
        case.weight[-4:] *= 50
    settings, rows = LossSettings(), case.rows()
    sums = distillation_loss(
        case.hidden, case.weight, rows, case.labels, settings, N, never_drafted=padding
    )
    trimmed = Case(8)
    trimmed.kept = torch.arange(V - 4)
    trimmed.draft_ids = draft_ids_of(trimmed.kept, V)
    trimmed.weight = case.weight[:-4].detach().requires_grad_()
    trimmed.labels = torch.where(case.labels < V - 4, case.labels, -1)
    same = trimmed.sparse(settings)
    torch.testing.assert_close(sums.loss, same.loss)
    torch.testing.assert_close(sums.cross_entropy, same.cross_entropy)
    assert sums.labelled == same.labelled
    _, of_weight = case.gradients(sums.loss)
    assert (of_weight[-4:] == 0).all()


def test_rows_with_impossible_ids_give_finite_losses() -> None:
    case = Case(9)
    rows = case.rows()
    rows.log_probs[:, -2:] = -torch.inf
    rows.log_tail[:] = -torch.inf
    for kind in KINDS:
        sums = distillation_loss(case.hidden, case.weight, rows, case.labels, LossSettings(kind), N)
        assert torch.isfinite(sums.loss)
        assert all(torch.isfinite(gradient).all() for gradient in case.gradients(sums.loss))


def test_the_sums_say_how_the_draft_does() -> None:
    case = Case(10, trimmed=True)
    sums = case.sparse(LossSettings())
    target = torch.softmax(case.teacher, 1)[:, case.kept]
    logits = case.hidden @ case.weight.T
    exact = torch.minimum(target, torch.softmax(logits, 1)).sum()
    assert sums.acceptance <= exact <= sums.acceptance_most
    agree = case.kept[logits.argmax(1)] == case.teacher.argmax(1)
    assert sums.agreements == agree.sum()
    has = case.labels >= 0
    assert 0 < sums.labelled.item() == has.sum().item() < N
    expected = functional.cross_entropy(logits[has], case.labels[has], reduction="sum")
    torch.testing.assert_close(sums.cross_entropy, expected)
    assert sums.tokens == N
    assert not sums.acceptance.requires_grad


def test_at_temperature_0_the_loss_is_against_the_greedy_choice() -> None:
    case = Case(11)
    greedy = case.teacher.argmax(1)
    ours = case.dense(LossSettings("kl", 0.0)).loss
    torch.testing.assert_close(ours, functional.cross_entropy(case.hidden @ case.weight.T, greedy))


def test_all_is_computed_in_float32_also_under_autocast() -> None:
    case = Case(12)
    hidden, weight = case.hidden.detach().bfloat16(), case.weight.detach().bfloat16()
    wide = distillation_loss(
        hidden.float(), weight.float(), case.rows(), case.labels, LossSettings(), N
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = distillation_loss(hidden, weight, case.rows(), case.labels, LossSettings(), N)
    assert narrow.loss.dtype == torch.float32
    assert narrow.loss.item() == wide.loss.item()


def test_nothing_is_differentiated_when_judging() -> None:
    case = Case(13)
    with torch.no_grad():
        sums = case.sparse(LossSettings())
    assert not sums.loss.requires_grad
    torch.testing.assert_close(sums.loss, case.sparse(LossSettings()).loss.detach())


def test_a_frozen_head_still_passes_its_gradient_down() -> None:
    case = Case(14)
    (expected, _) = case.gradients(case.sparse(LossSettings()).loss)
    case.weight.requires_grad_(False)
    case.sparse(LossSettings()).loss.backward()
    assert case.weight.grad is None
    assert case.hidden.grad is not None
    torch.testing.assert_close(case.hidden.grad, expected)


def test_a_few_steps_bring_a_trimmed_draft_near_all_it_can_have() -> None:
    case = Case(15, trimmed=True)
    reach = torch.softmax(case.teacher, 1)[:, case.kept].sum()
    free = torch.zeros(N, len(case.kept), requires_grad=True)  # one logit per token and id
    identity = torch.eye(len(case.kept))
    rows = teacher_rows(
        torch.arange(V).repeat(N, 1), case.teacher, torch.logsumexp(case.teacher, 1), 1.0
    ).translated(case.draft_ids)
    optimizer = torch.optim.Adam([free], lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        sums = distillation_loss(free, identity, rows, case.labels, LossSettings(), N)
        sums.loss.backward()
        optimizer.step()
    assert sums.acceptance.item() == pytest.approx(reach.item(), rel=0.01)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"kind": "mse"}, "loss 'mse' is none of lk, kl"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"decay": float("nan")}, "decay is nan"),
        ({"kd_temperature": float("inf")}, "kd_temperature is inf"),
        ({"alpha": 1.5}, r"alpha is 1\.5"),
    ],
)
def test_settings_out_of_range_are_refused(fields: dict[str, float], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        LossSettings(**fields)  # type: ignore[arg-type]


def test_only_the_classic_loss_has_a_temperature_of_its_own_for_the_teacher() -> None:
    assert LossSettings("classic", 1.0, kd_temperature=2.0).teacher_temperature == 2.0
    assert LossSettings("classic", 0.8).teacher_temperature == 0.8
    assert LossSettings("lk", 0.8, kd_temperature=2.0).teacher_temperature == 0.8
