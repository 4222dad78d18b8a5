"""Draw tokens from rows of logits that lie on an accelerator; only what is decided on comes over.

Whoever has rows as tensors asks `sampler_on` for the sampler that suits their device. This module
imports torch, and so is not part of what the room exports.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from outrider.sampling.device_rows import (
    MARGIN,
    DeviceEdit,
    bring,
    contenders,
    largest,
    log_weights,
    near_nucleus,
    where,
)
from outrider.sampling.history import History
from outrider.sampling.logprobs import token_logprobs
from outrider.sampling.processors import Processors
from outrider.sampling.race import winner
from outrider.sampling.sampler import SamplerFactory, TokenSampler
from outrider.sampling.select import nucleus
from outrider.sampling.warp import Support, check_top, truncate, warp
from outrider.types import LogprobsMode, SamplingParams, TokenLogprobs

__all__ = ["DeviceSampler", "HostSampler", "sampler_on"]


def sampler_on(device: torch.device) -> SamplerFactory:
    """What makes samplers for rows that are tensors on this device."""
    # Apple's devices have no float64, so their rows come over whole.
    return HostSampler if device.type in ("cpu", "mps") else DeviceSampler


class HostSampler:
    """`TokenSampler` for tensors; those in the host's memory are read where they lie."""

    def __init__(
        self,
        params: SamplingParams,
        noise_key: int,
        choice: int = 0,
        *,
        end_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._sampler = TokenSampler(params, noise_key, choice, end_token_ids=end_token_ids)

    def support(self, logits: Tensor, history: History) -> Support:
        return self._sampler.support(logits.cpu().numpy(), history)

    def head(self, logits: Tensor, history: History, size: int) -> Support:
        return self._sampler.head(logits.cpu().numpy(), history, size)

    def sample(self, logits: Tensor, history: History) -> int:
        return self._sampler.sample(logits.cpu().numpy(), history)

    def logprobs(self, logits: Tensor, history: History, token_id: int) -> TokenLogprobs:
        return self._sampler.logprobs(logits.cpu().numpy(), history, token_id)


class DeviceSampler:
    """`TokenSampler` for tensors on an accelerator: the same tokens from the same float32 rows.

    Rows are processed and screened where they lie; the few ids and logits that are left come to
    the host, where the code that serves rows of the host decides. So a row gives the same token
    and the same support, with one exception: `top_p` is a share of a total, a part of which is
    summed up on the device, and where the nucleus reaches that share to within rounding (1e-7 of
    what `top_p` leaves out) it may end a token sooner or later. Log probabilities agree to about
    1e-6.

    The device needs int64 and float64. The tests compare tensors in the host's memory with arrays;
    that other devices do the same rests on IEEE 754 arithmetic, and on margins where that does not
    fix the bits. It is not tested on them.

    Args:
        params, noise_key, choice, end_token_ids: as for `TokenSampler`.
    """

    def __init__(
        self,
        params: SamplingParams,
        noise_key: int,
        choice: int = 0,
        *,
        end_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._params = params
        self._noise_key = noise_key
        self._choice = choice
        self._temperature = params.temperature or 1.0  # the argmax alone has the same at any
        self._processors = Processors(params, end_token_ids)
        self._fixed: list[DeviceEdit] | None = None

    def support(self, logits: Tensor, history: History) -> Support:
        """See `TokenSampler.support`. Without `min_p`, `top_k` and `top_p` it copies the row."""
        row = self._processed(logits, history)
        params, size = self._params, row.numel()
        if params.greedy:
            return self._part(row, where(row == row.max())[:1], history)
        if 0 < params.top_k < size:
            # Where `min_p` leaves more than k tokens, it leaves these; so it may come second.
            return truncate(self._part(row, largest(row, params.top_k), history), params)
        if params.min_p > 0:
            likely = log_weights(row, self._temperature) >= math.log(params.min_p) - MARGIN
            return truncate(self._part(row, where(likely), history), params)
        if params.top_p < 1:
            return self._nucleus(row, history)
        host = row.cpu().numpy()
        self._check_top(float(host.max()), history)
        return warp(host, params)

    def head(self, logits: Tensor, history: History, size: int) -> Support:
        """See `TokenSampler.head`. Copies no whole row."""
        if not self._whole(logits.numel()):
            return self.support(logits, history).head(size)
        row = self._processed(logits, history)
        return self._part(row, largest(row, size), history)

    def sample(self, logits: Tensor, history: History) -> int:
        """See `TokenSampler.sample`. Copies no whole row."""
        place = (self._noise_key, self._choice, len(history))
        if not self._whole(logits.numel()):
            return winner(self.support(logits, history), *place)
        row = self._processed(logits, history)
        ids = contenders(row, self._temperature, place)
        return winner(self._part(row, ids, history), *place)

    def logprobs(self, logits: Tensor, history: History, token_id: int) -> TokenLogprobs:
        """See `TokenSampler.logprobs`. Copies no whole row."""
        count = self._params.logprobs or 0
        processed = self._params.logprobs_mode is LogprobsMode.PROCESSED
        if processed and not self._whole(logits.numel()):
            return token_logprobs(self.support(logits, history), token_id, count)
        row = self._processed(logits, history) if processed else logits
        temperature = self._temperature if processed else 1.0
        own = torch.tensor([token_id], device=row.device)
        wanted = torch.cat((largest(row, count), own))
        total = log_weights(row, temperature).exp_().sum()
        found, values, (top, total_weight) = bring(row, wanted, row.max(), total)
        if processed:
            self._check_top(top, history)
        check_top(top)
        ids, places = np.unique(found, return_index=True)
        part = Support(ids, values[places], top, temperature)
        part.total = total_weight  # of the whole row, of which these tokens are a part
        return token_logprobs(part, token_id, count)

    def _whole(self, vocab_size: int) -> bool:
        """Whether every token of a row may be sampled."""
        params = self._params
        cut = params.min_p > 0 or params.top_p < 1 or 0 < params.top_k < vocab_size
        return not (params.greedy or cut)

    def _nucleus(self, row: Tensor, history: History) -> Support:
        params, size = self._params, row.numel()
        weights = log_weights(row, self._temperature).exp_()
        likely = near_nucleus(weights, params.top_p)
        dropped = weights.masked_fill(likely, 0.0).sum()
        ids, logits, (top, rest) = bring(row, where(likely), row.max(), dropped)
        self._check_top(top, history)
        part = Support(ids, logits, top, self._temperature)
        kept = part.weights(within=size)
        total = float(kept.sum(dtype=np.float64)) + rest
        return part.keep(nucleus(kept, total, params.top_p))

    def _part(self, row: Tensor, ids: Tensor, history: History) -> Support:
        """Some of a processed row's tokens, ascending, on the host."""
        found, logits, (top,) = bring(row, ids, row.max())
        self._check_top(top, history)
        return Support(found, logits, top, self._temperature)

    def _processed(self, logits: Tensor, history: History) -> Tensor:
        """The processed row behind `history`; the given one itself if there is nothing to do."""
        if not self._processors.active(history):
            return logits
        if self._fixed is None:
            self._fixed = [DeviceEdit(edit, logits.device) for edit in self._processors.fixed]
        row = logits.clone()
        for edit in self._fixed:
            edit.apply(row)
        for changing in self._processors.edits(history):
            DeviceEdit(changing, row.device).apply(row)
        return row

    def _check_top(self, top: float, history: History) -> None:
        if top == -math.inf and self._processors.active(history):
            raise self._processors.no_token_left(history)
        check_top(top)
