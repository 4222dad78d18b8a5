"""Sampling from rows over a draft model's own ids, as tokens of the target.

Ids of the draft that mean nothing to the target are left out, and the rest is renormalised, by
virtue of being all there is. Noise, penalties and constraints go by the target's ids.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from outrider.drafters.picker import DraftSamplerFactory
from outrider.drafters.translation import Translation
from outrider.sampling import History, Processors, Support, warp
from outrider.sampling.device import DeviceSampler, HostSampler, sampler_on
from outrider.sampling.race import winner
from outrider.types import SamplingParams

__all__ = ["translated_sampler"]


def translated_sampler(
    translation: Translation, vocab_size: int, device: torch.device
) -> DraftSamplerFactory:
    """What makes samplers for rows of shape [V_draft] that are tensors on this device.

    Args:
        translation: of the draft model.
        vocab_size: of the target.
        device: where the rows are.
    """
    made = _HostRows if sampler_on(device) is HostSampler else _DeviceRows
    return partial(made, _Columns(translation, vocab_size, device))


class _Columns:
    """Which entries of a row count, and as what.

    Attributes:
        vocab_size: of the target.
        target_ids: int64, shape [n], ascending.
        order: int64, shape [n], where in a row these are; None if they are all of it, in order.
    """

    def __init__(self, translation: Translation, vocab_size: int, device: torch.device) -> None:
        drafted = translation.drafted
        self.vocab_size = vocab_size
        self.target_ids = translation.target_ids[drafted]
        whole = np.array_equal(drafted, np.arange(translation.target_ids.size))
        self.order = None if whole else drafted
        self.device_ids = torch.from_numpy(self.target_ids).to(device)
        self.device_order = torch.from_numpy(drafted).to(device)


class _HostRows:
    """For rows in the host's memory. Nothing of the target's size is touched unless it must be."""

    def __init__(
        self,
        columns: _Columns,
        params: SamplingParams,
        noise_key: int,
        choice: int = 0,
        *,
        end_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._columns = columns
        self._params = params
        self._place = (noise_key, choice)
        self._processors = Processors(params, end_token_ids)

    def sample(self, logits: Tensor, history: History) -> int:
        return winner(self._support(logits, history), *self._place, len(history))

    def head(self, logits: Tensor, history: History, size: int) -> Support:
        return self._support(logits, history).head(size)

    def _support(self, logits: Tensor, history: History) -> Support:
        columns = self._columns
        row = logits.cpu().numpy()
        if columns.order is not None:
            row = row[columns.order]
        if self._processors.active(history):
            whole = np.full(columns.vocab_size, -np.inf, dtype=row.dtype)
            whole[columns.target_ids] = row
            row = self._processors.apply(whole, history)[columns.target_ids]
        support = warp(row, self._params)
        token_ids = columns.target_ids[support.ids]
        return Support(token_ids, support.logits, support.top, support.temperature)


class _DeviceRows:
    """For rows on an accelerator, where a row of the target's size costs next to nothing."""

    def __init__(
        self,
        columns: _Columns,
        params: SamplingParams,
        noise_key: int,
        choice: int = 0,
        *,
        end_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._columns = columns
        self._sampler = DeviceSampler(params, noise_key, choice, end_token_ids=end_token_ids)

    def sample(self, logits: Tensor, history: History) -> int:
        return self._sampler.sample(self._whole(logits), history)

    def head(self, logits: Tensor, history: History, size: int) -> Support:
        return self._sampler.head(self._whole(logits), history, size)

    def _whole(self, logits: Tensor) -> Tensor:
        columns = self._columns
        whole = logits.new_full((columns.vocab_size,), -torch.inf)
        whole[columns.device_ids] = logits[columns.device_order]
        return whole
