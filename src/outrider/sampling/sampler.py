"""Draw tokens from rows of logits, with the history and the noise of their positions."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from outrider.sampling.history import History
from outrider.sampling.logprobs import token_logprobs
from outrider.sampling.processors import Processors
from outrider.sampling.race import winner
from outrider.sampling.warp import Support, warp
from outrider.types import LogprobsMode, SamplingParams, TokenLogprobs

__all__ = ["Sampler", "SamplerFactory", "TokenSampler"]

Row = npt.NDArray[np.floating]

_RAW = SamplingParams()


class Sampler(Protocol):
    """Draws tokens from rows of logits of one kind: arrays, or tensors of torch.

    What the methods mean is said at `TokenSampler`.
    """

    def support(self, logits: Any, history: History) -> Support: ...

    def head(self, logits: Any, history: History, size: int) -> Support: ...

    def sample(self, logits: Any, history: History) -> int: ...

    def logprobs(self, logits: Any, history: History, token_id: int) -> TokenLogprobs: ...


class SamplerFactory(Protocol):
    """Makes the sampler of one choice of one request; arguments as for `TokenSampler`."""

    def __call__(
        self,
        params: SamplingParams,
        noise_key: int,
        choice: int = 0,
        *,
        end_token_ids: frozenset[int] = frozenset(),
    ) -> Sampler: ...


class TokenSampler:
    """Samples tokens for one choice of one request: a pure function of (logits, history).

    Target and draft model both use it, with the same noise key: their samples then agree with
    probability at least (1 - TV) / (1 + TV), where TV is the total variation between their
    distributions (Gumbel coupling, arXiv 2408.07978).

    Args:
        params: validated parameters.
        noise_key: 64 bits that fix the noise.
        choice: index of this copy among the `n` of one request.
        end_token_ids: ids that end the output, which `min_tokens` holds back.
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
        self._processors = Processors(params, end_token_ids)

    def support(self, logits: Row, history: History) -> Support:
        """The processed distribution behind `history`; of the argmax alone at temperature 0.

        Args:
            logits: shape [V], of the target's vocabulary.
            history: every token in front of the one that is drawn.

        Raises:
            TargetFailed: the logits are not numbers.
            RequestError: the constraints leave no token.
        """
        return warp(self._processors.apply(logits, history), self._params)

    def head(self, logits: Row, history: History, size: int) -> Support:
        """The `size` likeliest tokens of `support`; arguments and errors as there."""
        return self.support(logits, history).head(size)

    def sample(self, logits: Row, history: History) -> int:
        """The token behind `history`; arguments and errors as for `support`."""
        support = self.support(logits, history)
        return winner(support, self._noise_key, self._choice, len(history))

    def logprobs(self, logits: Row, history: History, token_id: int) -> TokenLogprobs:
        """What the caller is told of `token_id`, sampled behind `history`."""
        processed = self._params.logprobs_mode is LogprobsMode.PROCESSED
        support = self.support(logits, history) if processed else warp(logits, _RAW)
        return token_logprobs(support, token_id, self._params.logprobs or 0)
