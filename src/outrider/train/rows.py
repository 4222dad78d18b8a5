"""The teacher's sparse rows, and a draft's rows seen on the same support.

A row keeps the probabilities of a few ids and the mass of all others: the tail. Probabilities are
held as logarithms; `NEVER` stands for the logarithm of 0 where arithmetic needs a finite number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from outrider.errors import TrainingError
from outrider.train.records import Example, Source

__all__ = [
    "NEVER",
    "TeacherRows",
    "acceptance_bounds",
    "draft_ids_of",
    "draft_on_support",
    "example_rows",
    "teacher_rows",
]

NEVER: Final = -1e9
"""Stands for log 0: `exp(NEVER)` is 0, and `0 * NEVER` is 0 with a gradient of 0."""


@dataclass(frozen=True, slots=True, eq=False)
class TeacherRows:
    """N rows of the teacher, k ids of each.

    Attributes:
        support_ids: int64 [N, k], distinct in each row; -1 where the draft has no such token.
        log_probs: float32 [N, k], of those ids, also where the id is -1; -inf for none.
        log_tail: float32 [N], of the mass of all ids outside the support; -inf for none.
    """

    support_ids: Tensor
    log_probs: Tensor
    log_tail: Tensor

    def __len__(self) -> int:
        return self.support_ids.shape[0]

    def __getitem__(self, rows: slice) -> TeacherRows:
        return TeacherRows(self.support_ids[rows], self.log_probs[rows], self.log_tail[rows])

    def to(self, device: torch.device | str) -> TeacherRows:
        return TeacherRows(
            self.support_ids.to(device), self.log_probs.to(device), self.log_tail.to(device)
        )

    def translated(self, draft_ids: Tensor) -> TeacherRows:
        """The same rows in the draft's ids.

        Args:
            draft_ids: int64 [V_target], of `draft_ids_of`.
        """
        ids = torch.where(self.support_ids < 0, -1, draft_ids[self.support_ids.clamp(min=0)])
        return TeacherRows(ids, self.log_probs, self.log_tail)

    def argmax(self) -> Tensor:
        """int64 [N], the likeliest id of each row, -1 if the draft lacks it; the first of equals.

        The tail is taken to hold nothing likelier, as is so where the support is the top k.
        """
        return self.support_ids.gather(1, self.log_probs.argmax(1, keepdim=True)).squeeze(1)

    @classmethod
    def cat(cls, parts: Sequence[TeacherRows]) -> TeacherRows:
        """All rows of `parts`, one or more, of the same k."""
        return cls(
            torch.cat([each.support_ids for each in parts]),
            torch.cat([each.log_probs for each in parts]),
            torch.cat([each.log_tail for each in parts]),
        )


def teacher_rows(
    support_ids: Tensor, support_logits: Tensor, logsumexp: Tensor, temperature: float
) -> TeacherRows:
    """Rows at `temperature`, above 0.

    What storing has rounded so that a support has more than all mass is scaled back to 1.

    Args:
        support_ids: integer [N, k].
        support_logits: [N, k], raw.
        logsumexp: [N], of raw logits / `temperature` over the whole vocabulary.
    """
    log_probs = support_logits.float() / temperature - logsumexp.float()[:, None]
    log_mass = torch.logsumexp(log_probs, 1)
    log_probs = log_probs - log_mass.clamp(min=0)[:, None]
    # log(1 - mass): expm1 keeps what a plain difference loses where mass is nearly 0 or 1.
    log_tail = torch.log(-torch.expm1(log_mass.clamp(max=0)))
    return TeacherRows(support_ids.long(), log_probs, log_tail)


def example_rows(example: Example, source: Source, temperature: float) -> TeacherRows:
    """The g rows of `example` in the target's ids.

    At temperature 0 the teacher is its own greedy choice: all mass on its likeliest id.

    Raises:
        TrainingError: the data holds no normalisers at `temperature`.
    """
    ids = torch.from_numpy(example.support_ids).long()
    if temperature == 0:
        log_probs = torch.full(ids.shape, -torch.inf)
        best = torch.from_numpy(example.support_logits).argmax(1, keepdim=True)
        return TeacherRows(
            ids, log_probs.scatter(1, best, 0.0), torch.full(ids.shape[:1], -torch.inf)
        )
    if temperature not in source.temperatures:
        raise TrainingError(
            f"the data has no normalisers at temperature {temperature:g}, only at "
            f"{', '.join(f'{each:g}' for each in source.temperatures)} and 0; train at one of "
            "these, or make the data again with that one in --temperatures"
        )
    column = source.temperatures.index(temperature)
    return teacher_rows(
        ids,
        torch.from_numpy(example.support_logits),
        torch.from_numpy(example.logsumexps[:, column]),
        temperature,
    )


def draft_ids_of(target_ids: Tensor, vocab_size: int) -> Tensor:
    """int64 [vocab_size]: the draft's id of each target id, -1 where it has none.

    Args:
        target_ids: int64 [V_draft], the target's id of each draft id, -1 where there is none.
        vocab_size: length of the target's rows.

    Raises:
        TrainingError: an id does not fit the target's rows.
    """
    if target_ids.numel() and int(target_ids.max()) >= vocab_size:
        raise TrainingError(
            f"the draft's vocabulary names token {int(target_ids.max())} of a target that has "
            f"{vocab_size}; use a draft that was made for this target"
        )
    draft_ids = torch.full((vocab_size,), -1, dtype=torch.int64, device=target_ids.device)
    known = torch.nonzero(target_ids >= 0).squeeze(1)
    draft_ids[target_ids[known]] = known
    return draft_ids


def draft_on_support(scores: Tensor, support_ids: Tensor) -> tuple[Tensor, Tensor]:
    """A draft's rows on the teacher's supports, with all else in one bucket.

    The bucket is summed over what it holds, not taken as 1 - the support's mass, which would be
    noise where the support has nearly all.

    Args:
        scores: [N, V_draft], logits over temperature; NEVER for ids that are never drafted.
        support_ids: int64 [N, k], in the draft's ids, -1 for none.

    Returns:
        Log-probabilities [N, k + 1], the bucket last and NEVER where the draft has no mass, and the
        normalisers [N].
    """
    inside = support_ids >= 0
    size = scores.shape[1]
    # One column more takes the ids that the draft lacks.
    taken = torch.zeros(scores.shape[0], size + 1, dtype=torch.bool, device=scores.device)
    taken.scatter_(1, torch.where(inside, support_ids, size), True)
    rest = torch.logsumexp(scores.masked_fill(taken[:, :size], NEVER), 1, keepdim=True)
    support = scores.gather(1, support_ids.clamp(min=0)).masked_fill(~inside, NEVER)
    parts = torch.cat((support, rest), 1)
    normaliser = torch.logsumexp(parts, 1, keepdim=True)
    return parts - normaliser, normaliser.squeeze(1)


def acceptance_bounds(rows: TeacherRows, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper bound [N] of the acceptance, the sum of min(target, draft) over all tokens.

    The support's share is exact. The tail adds between nothing, if target and draft have theirs on
    different tokens, and the lesser of both.

    Args:
        rows: N rows in the draft's ids.
        scores: as in `draft_on_support`.
    """
    log_draft, _ = draft_on_support(scores, rows.support_ids)
    draft = log_draft.exp()
    lower = torch.minimum(rows.log_probs.exp(), draft[:, :-1]).sum(1)
    return lower, lower + torch.minimum(rows.log_tail.exp(), draft[:, -1])
