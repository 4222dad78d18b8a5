"""Each defect of the textbook distillation loss: there in the textbook's code, absent in ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.train.losses import LossSettings, dense_loss, distillation_loss
from outrider.train.rows import NEVER, draft_ids_of, teacher_rows

B, L, H, V = 2, 6, 8, 32
KL = LossSettings("kl")
CE = LossSettings("ce")


def textbook_loss(
    draft_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    temperature: float = 1.5,
    alpha: float = 0.5,
) -> Tensor:
    """As many tutorials have it, on [batch, sequence, vocabulary]."""
    soft = torch.nn.KLDivLoss(reduction="batchmean")(
        functional.log_softmax(draft_logits / temperature, dim=-1),
        functional.softmax(teacher_logits / temperature, dim=-1),
    )
    size = draft_logits.shape[-1]
    hard = functional.cross_entropy(draft_logits.reshape(-1, size), labels.reshape(-1))
    return alpha * soft * temperature**2 + (1 - alpha) * hard


@dataclass
class Batch:
    """Sequences [B, L] of which the target made a part."""

    hidden: Tensor
    head: Tensor
    teacher: Tensor
    token_ids: Tensor
    generated: Tensor

    @classmethod
    def random(cls, seed: int = 0, *, prompt: int = 2) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        return cls(
            torch.randn(B, L, H, generator=generator),
            torch.randn(V, H, generator=generator),
            torch.randn(B, L, V, generator=generator) * 2,
            torch.randint(V, (B, L), generator=generator),
            torch.arange(L).expand(B, L) >= prompt,
        )

    @property
    def draft(self) -> Tensor:
        return self.hidden @ self.head.T

    def textbook(self, **settings: float) -> float:
        return float(textbook_loss(self.draft, self.teacher, self.token_ids, **settings))

    def ours(self, settings: LossSettings = KL, num_items: int | None = None) -> float:
        """Of the states in front of generated tokens, which is what our loss takes."""
        predicted = self.generated[:, 1:]
        sums = dense_loss(
            self.hidden[:, :-1][predicted],
            self.head,
            self.teacher[:, :-1][predicted],
            self.token_ids[:, 1:][predicted],
            settings,
            int(predicted.sum()) if num_items is None else num_items,
        )
        return float(sums.loss)


def test_the_kl_of_a_longer_sequence_is_not_larger() -> None:
    short = Batch.random()
    # The same token over and over, so every mean is that of one token.
    short.hidden[:] = short.hidden[:1, :1].clone()
    short.teacher[:] = short.teacher[:1, :1].clone()
    long = Batch(
        short.hidden.repeat(1, 2, 1),
        short.head,
        short.teacher.repeat(1, 2, 1),
        short.token_ids.repeat(1, 2),
        torch.arange(2 * L).expand(B, 2 * L) >= 2,
    )
    assert long.textbook(alpha=1.0) == pytest.approx(2 * short.textbook(alpha=1.0))
    assert long.ours() == pytest.approx(short.ours())


def test_what_the_draft_makes_of_prompt_and_padding_does_not_count() -> None:
    batch, other = Batch.random(), Batch.random()
    for each in (batch, other):
        each.generated = torch.tensor([0, 0, 1, 1, 0, 0], dtype=torch.bool).expand(B, L)
    # Position 0 predicts a prompt's token; 3 to 5 predict padding.
    other.hidden[:, [0, 3, 4, 5]] += 1.0
    assert batch.textbook(alpha=1.0) != pytest.approx(other.textbook(alpha=1.0), rel=0.01)
    assert batch.ours() == other.ours()


def test_a_state_is_not_trained_to_copy_the_token_that_it_has_just_read() -> None:
    copies, predicts = Batch.random(), Batch.random()
    for each, shift in ((copies, 0), (predicts, -1)):
        each.head = torch.eye(V) * 20
        each.hidden = torch.eye(V)[each.token_ids.roll(shift, 1)]
    assert copies.textbook(alpha=0.0) < 0.01 < predicts.textbook(alpha=0.0)
    assert predicts.ours(CE) < 0.01 < copies.ours(CE)


def test_tokens_without_a_label_have_no_cross_entropy() -> None:
    batch = Batch.random()
    batch.token_ids[:, -1] = -1  # a token that the draft lacks, or no token at all
    with pytest.raises(IndexError):
        batch.textbook()
    labels = batch.token_ids[batch.generated]
    states = batch.hidden[:, :-1][batch.generated[:, 1:]]
    expected = functional.cross_entropy(
        states @ batch.head.T, labels, ignore_index=-1, reduction="sum"
    )
    assert batch.ours(CE) * len(labels) == pytest.approx(float(expected), rel=1e-5)


def test_padding_is_not_a_label() -> None:
    batch, other = Batch.random(), Batch.random()
    for each in (batch, other):
        each.generated = torch.tensor([0, 0, 1, 1, 0, 0], dtype=torch.bool).expand(B, L)
    other.token_ids[:, 4:] = 0
    assert batch.textbook(alpha=0.0) != pytest.approx(other.textbook(alpha=0.0), rel=0.01)
    assert batch.ours(CE) == other.ours(CE)


def test_accumulation_gives_a_token_the_same_weight_in_a_short_batch_as_in_a_long_one() -> None:
    batch = Batch.random()
    batch.generated = torch.tensor([[0, 0, 0, 0, 0, 1], [0, 1, 1, 1, 1, 1]], dtype=torch.bool)
    parts = [
        Batch(
            batch.hidden[[row]],
            batch.head,
            batch.teacher[[row]],
            batch.token_ids[[row]],
            batch.generated[[row]],
        )
        for row in range(B)
    ]

    def textbook(part: Batch) -> float:
        # The textbook's own way to mask: labels of -100.
        labels = part.token_ids.masked_fill(~part.generated, -100)
        return float(textbook_loss(part.draft, part.teacher, labels, alpha=0.0))

    mean_of_means = sum(textbook(part) for part in parts) / B
    assert mean_of_means != pytest.approx(textbook(batch), rel=0.01)
    tokens = int(batch.generated.sum())
    assert sum(part.ours(num_items=tokens) for part in parts) == pytest.approx(batch.ours())


def test_a_fully_masked_batch_has_a_loss_of_0() -> None:
    batch = replace(Batch.random(), generated=torch.zeros(B, L, dtype=torch.bool))
    masked = torch.full((B, L), -100)
    assert torch.isnan(textbook_loss(batch.draft, batch.teacher, masked))
    for settings in (LossSettings(), CE):
        assert batch.ours(settings) == 0.0


def test_the_draft_is_judged_at_the_temperature_of_serving() -> None:
    teacher = torch.tensor([[[2.0, -0.5, -3.0]]])
    # Wrong where the teacher has next to nothing, which heating the rows blows up.
    better = torch.tensor([[[3.0, 0.5, -7.0]]])
    worse = torch.tensor([[[2.0, 0.5, -2.0]]])
    label = torch.zeros(1, 1, dtype=torch.int64)

    def ours(logits: Tensor, kind: LossSettings) -> float:
        return float(dense_loss(logits[0], torch.eye(3), teacher[0], label[0], kind, 1).loss)

    def accepted(logits: Tensor) -> float:
        return float(torch.minimum(logits.softmax(-1), teacher.softmax(-1)).sum())

    assert accepted(better) > accepted(worse) + 0.1
    assert textbook_loss(better, teacher, label, alpha=1.0) > textbook_loss(
        worse, teacher, label, alpha=1.0
    )
    assert LossSettings().temperature == LossSettings().teacher_temperature == 1.0
    for settings in (LossSettings(), LossSettings("tv"), KL):
        assert ours(better, settings) < ours(worse, settings)


def test_swapped_arguments_of_kl_are_an_error_and_not_another_loss() -> None:
    probs = torch.tensor([[0.90, 0.05, 0.05]])
    draft = torch.tensor([[0.40, 0.30, 0.30]])
    label = torch.zeros(1, dtype=torch.int64)
    right = textbook_loss(draft.log()[None], probs.log()[None], label[None], 1.0, 1.0)
    wrong = textbook_loss(probs.log()[None], draft.log()[None], label[None], 1.0, 1.0)
    assert float(wrong) > 1.2 * float(right)
    rows = teacher_rows(torch.arange(3)[None], probs.log(), torch.zeros(1), 1.0)
    ours = distillation_loss(draft.log(), torch.eye(3), rows, label, KL, 1)
    assert float(ours.loss) == pytest.approx(float((probs * (probs / draft).log()).sum()))
    with pytest.raises((AttributeError, TypeError)):
        distillation_loss(rows, torch.eye(3), draft.log(), label, KL, 1)  # type: ignore[arg-type]


def test_a_live_teacher_is_not_trained_along() -> None:
    batch = Batch.random()
    batch.teacher.requires_grad_()
    textbook_loss(batch.draft, batch.teacher, batch.token_ids).backward()
    assert batch.teacher.grad is not None
    assert (batch.teacher.grad != 0).any()
    hidden, teacher = batch.hidden[0].requires_grad_(), batch.teacher.detach()[0].requires_grad_()
    dense_loss(hidden, batch.head, teacher, batch.token_ids[0], KL, L).loss.backward()
    assert hidden.grad is not None
    assert teacher.grad is None


def test_the_softmax_of_a_bf16_draft_is_not_taken_in_bf16() -> None:
    batch = Batch.random()
    half = replace(batch, hidden=batch.hidden.bfloat16(), head=batch.head.bfloat16())
    exact = replace(half, hidden=half.hidden.double(), head=half.head.double())
    wide = replace(exact, teacher=batch.teacher.double())
    textbook = textbook_loss(half.draft, half.teacher.bfloat16(), half.token_ids, 1.0, 1.0)
    assert textbook.dtype == torch.bfloat16
    assert float(textbook) != pytest.approx(wide.textbook(temperature=1.0, alpha=1.0), rel=1e-4)
    assert half.ours() == pytest.approx(wide.ours(), rel=1e-5)


def test_vocabularies_of_one_size_with_other_ids_are_compared_token_by_token() -> None:
    target_ids = torch.randperm(V, generator=torch.Generator().manual_seed(1))
    teacher = torch.randn(L, V, generator=torch.Generator().manual_seed(2)) * 2
    same = teacher[:, target_ids]  # a perfect draft, in its own ids
    tokens = teacher.argmax(1)
    assert textbook_loss(same[None], teacher[None], tokens[None], 1.0, 1.0) > 1.0
    draft_ids = draft_ids_of(target_ids, V)
    labels = draft_ids[tokens]
    dense = dense_loss(same, torch.eye(V), teacher, labels, KL, L, target_ids=target_ids)
    rows = teacher_rows(*_top(teacher, 8), torch.logsumexp(teacher, 1), 1.0)
    sparse = distillation_loss(same, torch.eye(V), rows.translated(draft_ids), labels, KL, L)
    for sums in (dense, sparse):
        assert float(sums.loss) == pytest.approx(0.0, abs=1e-5)
        assert int(sums.agreements) == L
        assert float(sums.acceptance_most) == pytest.approx(L)


def _top(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, ids = torch.topk(logits, k)
    return ids, values


def test_padded_ids_take_no_mass() -> None:
    real, padded = 24, torch.arange(V) >= 24
    teacher = torch.randn(L, V, generator=torch.Generator().manual_seed(2)) * 2
    teacher[:, real:] = NEVER
    draft = torch.where(padded, 5.0, teacher)  # as the target but for the padding
    labels = teacher.argmax(1)
    assert textbook_loss(draft[None], teacher[None], labels[None], 1.0, 1.0) > 1.0
    rows = teacher_rows(*_top(teacher, 8), torch.logsumexp(teacher, 1), 1.0)
    sparse = distillation_loss(draft, torch.eye(V), rows, labels, KL, L, never_drafted=padded)
    target_ids = torch.arange(V).masked_fill(padded, -1)
    dense = dense_loss(draft, torch.eye(V), teacher, labels, KL, L, target_ids=target_ids)
    for sums in (sparse, dense):
        assert float(sums.loss) == pytest.approx(0.0, abs=1e-5)


class _Largest(TorchDispatchMode):
    """Notes the elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, Tensor):
                self.numel = max(self.numel, each.numel())
        return made


def test_logits_of_all_tokens_are_never_in_memory_at_once() -> None:
    n, size, chunk = 64, 500, 4
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, 2, generator=generator).requires_grad_()
    head = torch.randn(size, 2, generator=generator).requires_grad_()
    teacher = torch.randn(n, size, generator=generator)
    labels = torch.randint(size, (n,), generator=generator)
    rows = teacher_rows(*_top(teacher, 8), torch.logsumexp(teacher, 1), 1.0)
    with _Largest() as textbook:
        textbook_loss((hidden @ head.T)[None], teacher[None], labels[None]).backward()
    with _Largest() as sparse:
        distillation_loss(
            hidden, head, rows, labels, LossSettings(), n, chunk=chunk
        ).loss.backward()
    assert textbook.numel == n * size
    assert sparse.numel <= chunk * (size + 1)
