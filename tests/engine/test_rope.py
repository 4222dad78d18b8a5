from __future__ import annotations

import torch

from outrider.engine.rope import RopeTable, apply_rope, half_apart, inverse_frequencies
from outrider.engine.rope_config import RopeConfig

CPU = torch.device("cpu")


def test_dimensions_that_are_not_turned_come_out_as_they_went_in() -> None:
    rope = RopeConfig(rotary_dim=4, scaling="longrope", frequency_factors=(1, 1), magnitude=3.0)
    order = half_apart(rope, 8)
    assert order is not None
    assert order.tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert inverse_frequencies(rope, 8)[2:].tolist() == [0, 0]
    heads = torch.randn(3, 1, 8, generator=torch.Generator().manual_seed(1))
    angles = RopeTable(rope, 8, CPU).at(torch.tensor([0, 1, 100]), 101, torch.float32)
    turned = torch.empty_like(heads)
    turned[:, :, order] = apply_rope(heads[:, :, order], *angles)
    assert torch.equal(turned[:, :, 4:], heads[:, :, 4:])
    lengths = turned[:, :, :4].norm(dim=-1) / heads[:, :, :4].norm(dim=-1)
    assert torch.allclose(lengths, torch.tensor(3.0))
