"""What a draft is trained to lose less of: losses over all predicted tokens of a batch.

Callers give the hidden states that predict a token of the target, and those only: position i's
state predicts token i + 1, and prompts and padding are left out. So nothing here is masked or
shifted. Every loss is a sum over tokens, divided once by `num_items`, the tokens of the whole step
on all devices: how a step is cut into batches does not change its gradient.

Target and draft are taken at one temperature, that of serving. At 0 the teacher is its own greedy
choice and the draft is taken at 1, which pushes the draft's mass to that choice, and what is called
acceptance is the draft's mass on it. Acceptance at temperature 0 is agreement of the two likeliest
tokens, which `LossSums.agreements` counts at any temperature. Rows at temperature 1 tell more per
token than greedy choices, so 1 is the default also for what will be served at 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from outrider.train.divergences import Shared, share
from outrider.train.head import Scores, rows_at_once, summed_loss
from outrider.train.objective import LossKind, LossSettings, per_token
from outrider.train.rows import NEVER, TeacherRows, draft_on_support

__all__ = ["LossKind", "LossSettings", "LossSums", "dense_loss", "distillation_loss"]

_NUM_COUNTS: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class LossSums:
    """A batch's loss, and sums of what tells how the draft does.

    All are scalar tensors on the batch's device, so nothing waits for it.

    Attributes:
        loss: the sum over tokens over `num_items`; the only one with a gradient.
        acceptance: lower bound of the sum of min(target, draft), at the teacher's temperature.
        acceptance_most: its upper bound.
        agreements: tokens where target and draft find the same token likeliest.
        cross_entropy: of the target's tokens that the draft has, in nats.
        labelled: how many those are.
        tokens: all tokens of the batch.
    """

    loss: Tensor
    acceptance: Tensor
    acceptance_most: Tensor
    agreements: Tensor
    cross_entropy: Tensor
    labelled: Tensor
    tokens: int


def distillation_loss(
    hidden: Tensor,
    head_weight: Tensor,
    teacher: TeacherRows,
    labels: Tensor,
    settings: LossSettings,
    num_items: int | Tensor,
    *,
    bias: Tensor | None = None,
    never_drafted: Tensor | None = None,
    chunk: int | None = None,
) -> LossSums:
    """The loss of N tokens against stored rows. Its gradients are exact; N may be 0.

    Args:
        hidden: [N, H], the draft's last hidden state in front of each token.
        head_weight: [V, H], its output head.
        teacher: N rows in the draft's ids, at `settings.teacher_temperature`.
        labels: int64 [N], the draft's id of each token, -1 where it has none: no cross-entropy.
        num_items: tokens of the whole step, over all batches and devices.
        bias: [V], of the head.
        never_drafted: bool [V], ids that the draft never gives out, such as padding: their
            probability is 0.
        chunk: rows at once; None for what `rows_at_once` finds.
    """

    def score(logits: Tensor, rows: slice) -> Scores:
        part = teacher[rows]
        scores = _over(logits, settings.teacher_temperature, never_drafted)
        log_draft, normaliser = draft_on_support(scores, part.support_ids)
        log_target = torch.cat((part.log_probs, part.log_tail[:, None]), 1).to(logits.dtype)
        shared = share(log_target, log_draft, part.support_ids.shape[1])
        same = scores.detach().argmax(1) == part.argmax()
        if settings.teacher_temperature != settings.temperature:
            scores = _over(logits, settings.temperature, never_drafted)
            normaliser = torch.logsumexp(scores, 1)
        return _sums(shared, same, scores, normaliser, labels[rows], settings)

    return _loss(hidden, head_weight, bias, score, num_items, chunk)


def dense_loss(
    hidden: Tensor,
    head_weight: Tensor,
    teacher_logits: Tensor | Callable[[slice], Tensor],
    labels: Tensor,
    settings: LossSettings,
    num_items: int | Tensor,
    *,
    target_ids: Tensor | None = None,
    bias: Tensor | None = None,
    chunk: int | None = None,
) -> LossSums:
    """The loss of N tokens against a live teacher. Otherwise as `distillation_loss`.

    Args:
        teacher_logits: raw [N, V_target], or gives those of a slice of the rows, so that they never
            exist all at once. No gradient goes there.
        target_ids: int64 [V], the target's id of each draft id, -1 for those that are never
            drafted; None if both have the same ids.
    """
    teacher = teacher_logits.__getitem__ if isinstance(teacher_logits, Tensor) else teacher_logits
    never_drafted = None if target_ids is None else target_ids < 0

    def score(logits: Tensor, rows: slice) -> Scores:
        with torch.no_grad():
            log_target = _log_probs(teacher(rows).to(logits.dtype), settings.teacher_temperature)
            likeliest = log_target.argmax(1)
            if target_ids is not None:
                log_target = log_target[:, target_ids.clamp(min=0)]
        scores = _over(logits, settings.teacher_temperature, never_drafted)
        normaliser = torch.logsumexp(scores, 1)
        shared = share(log_target, scores - normaliser[:, None], scores.shape[1])
        choice = scores.detach().argmax(1)
        same = (choice if target_ids is None else target_ids[choice]) == likeliest
        if settings.teacher_temperature != settings.temperature:
            scores = _over(logits, settings.temperature, never_drafted)
            normaliser = torch.logsumexp(scores, 1)
        return _sums(shared, same, scores, normaliser, labels[rows], settings)

    return _loss(hidden, head_weight, bias, score, num_items, chunk)


def _loss(
    hidden: Tensor,
    head_weight: Tensor,
    bias: Tensor | None,
    score: Callable[[Tensor, slice], Scores],
    num_items: int | Tensor,
    chunk: int | None,
) -> LossSums:
    at_once = chunk or rows_at_once(head_weight.shape[0])
    sums = summed_loss(hidden, head_weight, bias, score, _NUM_COUNTS, at_once)
    # A step without any token has a loss of 0, not 0 / 0.
    items = torch.as_tensor(num_items, dtype=sums.loss.dtype, device=hidden.device).clamp(min=1)
    acceptance, bucket, agreements, cross_entropy, labelled = sums.counts.unbind()
    return LossSums(
        loss=sums.loss / items,
        acceptance=acceptance,
        acceptance_most=acceptance + bucket,
        agreements=agreements,
        cross_entropy=cross_entropy,
        labelled=labelled,
        tokens=hidden.shape[0],
    )


def _sums(
    shared: Shared,
    same: Tensor,
    scores: Tensor,
    normaliser: Tensor,
    labels: Tensor,
    settings: LossSettings,
) -> Scores:
    of_label = scores.gather(1, labels.clamp(min=0)[:, None]).squeeze(1)
    has_label = (labels >= 0) & (of_label > NEVER / 2)
    cross_entropy = (normaliser - of_label).masked_fill(~has_label, 0.0)
    counted = (shared.acceptance, shared.bucket, same, cross_entropy, has_label)
    counts = torch.stack([each.detach().sum(dtype=scores.dtype) for each in counted])
    return Scores(per_token(shared, cross_entropy, settings).sum(), counts)


def _over(logits: Tensor, temperature: float, never_drafted: Tensor | None) -> Tensor:
    """Logits over temperature, 0 meaning 1: see the module's text."""
    scores = logits if temperature in {0.0, 1.0} else logits / temperature
    return scores if never_drafted is None else scores.masked_fill(never_drafted, NEVER)


def _log_probs(logits: Tensor, temperature: float) -> Tensor:
    if temperature == 0:
        greedy = torch.full_like(logits, -torch.inf)
        return greedy.scatter(1, logits.argmax(1, keepdim=True), 0.0)
    return torch.log_softmax(logits / temperature, 1)
