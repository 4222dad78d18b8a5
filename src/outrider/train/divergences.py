"""What one token's draft row costs, given the teacher's: the losses as plain mathematics.

Rows come as log-probabilities over the ids of a support and, in a last column, a bucket for all
others, on both sides. Two things follow from that, and from drafts that lack some of the target's
tokens.

**The bucket.** Divergences can only shrink when outcomes are merged, so KL, reverse KL and JSD are
lower bounds of those over the whole vocabulary; they still hold the draft to the right mass outside
the support, which a bare truncated KL does not. The acceptance is taken on the support alone, a
lower bound, so `1 - acceptance`, `-log(acceptance)` and TV are upper bounds: no training is spent
on merely having as much mass as the target somewhere. Where the support is everything, all are
exact.

**What the draft cannot have.** Let m be the target's mass on what the draft can draft at all. No
draft reaches an acceptance above m, and the target's row conditioned on that part, p / m, reaches
it. So divergences are those from p / m, times m, since m is the most that a token can gain. The
gradient is that of `sum p log(p / q)` over what the draft has, but the value is finite, never below
0, and 0 for the best draft. `1 - acceptance` becomes `m - acceptance`, and the schedule of LK sees
`acceptance / m`. For a draft with all of the target's tokens m is 1, and the losses are those of
the papers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from outrider.train.rows import NEVER

__all__ = [
    "Shared",
    "forward_kl",
    "jensen_shannon",
    "likelihood_kl",
    "lost_acceptance",
    "negative_log_acceptance",
    "reverse_kl",
    "share",
]

_LEAST: Final = math.log(2.0**-24)
"""Stands for the teacher's log-probability where it has none, which only reverse KL divides by: the
resolution of a mass stored in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """N rows of teacher and draft over the same C outcomes.

    Attributes:
        log_target: [N, C], the teacher's, conditioned on what the draft can draft; NEVER elsewhere.
        log_draft: [N, C]; NEVER where the draft has nothing.
        reach: [N], the teacher's mass on what the draft can draft: m.
        log_reach: [N], its logarithm.
        acceptance: [N], the sum of min(target, draft) over the support.
        bucket: [N], what the bucket adds to that at most.
        support: columns without the bucket.
    """

    log_target: Tensor
    log_draft: Tensor
    reach: Tensor
    log_reach: Tensor
    acceptance: Tensor
    bucket: Tensor
    support: int


def share(log_target: Tensor, log_draft: Tensor, support: int) -> Shared:
    """Put the teacher's log-probabilities beside the draft's.

    Args:
        log_target: [N, C], over the whole of the target's mass, -inf for none; no gradient.
        log_draft: [N, C], NEVER where the draft has nothing.
        support: how many of the columns are single tokens: C, or C - 1 with a bucket behind.
    """
    can = log_draft > NEVER / 2
    log_mass = log_target.clamp(min=NEVER).masked_fill(~can, NEVER)
    log_reach = torch.logsumexp(log_mass, 1)
    common = torch.minimum(log_mass.exp(), log_draft.exp())
    return Shared(
        log_target=(log_mass - log_reach[:, None]).masked_fill(log_mass <= NEVER / 2, NEVER),
        log_draft=log_draft,
        reach=log_reach.exp(),
        log_reach=log_reach,
        acceptance=common[:, :support].sum(1),
        bucket=common[:, support:].sum(1),
        support=support,
    )


def forward_kl(rows: Shared) -> Tensor:
    """[N]: m KL(target || draft)."""
    return rows.reach * _kl(rows.log_target, rows.log_draft)


def reverse_kl(rows: Shared) -> Tensor:
    """[N]: m KL(draft || target), finite also where the teacher has no mass."""
    log_target = rows.log_target.masked_fill(rows.log_target <= NEVER / 2, _LEAST)
    return rows.reach * _kl(rows.log_draft, log_target)


def jensen_shannon(rows: Shared) -> Tensor:
    """[N]: m JSD(target, draft), in nats, at most m log 2."""
    mean = torch.logaddexp(rows.log_target, rows.log_draft) - math.log(2)
    return rows.reach * (_kl(rows.log_target, mean) + _kl(rows.log_draft, mean)) / 2


def lost_acceptance(rows: Shared) -> Tensor:
    """[N]: m - acceptance; total variation if the draft has all tokens and the support too."""
    return rows.reach - rows.acceptance


def negative_log_acceptance(rows: Shared) -> Tensor:
    """[N]: -m log(acceptance / m); 0 where no token of the support can be drafted."""
    log_mass = rows.log_target + rows.log_reach[:, None]
    support = slice(0, rows.support)
    # In logarithms throughout, so that a hopeless draft still has a gradient.
    log_acceptance = torch.logsumexp(
        torch.minimum(log_mass[:, support], rows.log_draft[:, support]), 1
    )
    hopeless = log_acceptance <= NEVER / 2
    return rows.reach * (rows.log_reach - log_acceptance).masked_fill(hopeless, 0.0)


def likelihood_kl(rows: Shared, decay: float) -> Tensor:
    """[N]: w m KL + (1 - w) (m - acceptance), where w = exp(-decay acceptance / m), held constant.

    KL while the draft is far off, whose gradient never vanishes; the acceptance itself once it is
    near (LK, arXiv 2602.23881).
    """
    tiny = torch.finfo(rows.reach.dtype).tiny
    weight = torch.exp(-decay * (rows.acceptance / rows.reach.clamp(min=tiny)).detach())
    return weight * forward_kl(rows) + (1 - weight) * lost_acceptance(rows)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum(1)
