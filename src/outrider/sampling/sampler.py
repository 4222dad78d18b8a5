"""Draw one token from one row of logits, with the noise that belongs to its position."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.errors import TargetFailed
from outrider.sampling.noise import gumbel
from outrider.sampling.warp import warp
from outrider.types import SamplingParams

__all__ = ["TokenSampler"]


@dataclass(frozen=True, slots=True)
class TokenSampler:
    """Samples tokens for one choice of one request: a pure function of (logits, position).

    Target and draft model both use it, with the same noise key: their samples then agree with
    probability at least (1 - TV) / (1 + TV), where TV is the total variation between their
    distributions (Gumbel coupling, arXiv 2408.07978).
    """

    params: SamplingParams
    noise_key: int
    choice: int = 0

    def sample(self, logits: npt.NDArray[np.floating], position: int) -> int:
        """The token at `position`.

        Args:
            logits: shape [V], of the target's vocabulary.
            position: absolute position of the token drawn, prompt included.

        Raises:
            TargetFailed: the logits are not numbers.
        """
        if self.params.greedy:
            best = int(np.argmax(logits))  # the first of equals; a NaN counts as the largest
            if not np.isfinite(logits[best]):
                raise TargetFailed(
                    f"the model's best logit is {logits[best]}; its weights are broken"
                )
            return best
        support = warp(logits, self.params)
        if support.token_ids.size == 1:
            return int(support.token_ids[0])
        noise = gumbel(self.noise_key, self.choice, position, support.token_ids)
        return int(support.token_ids[int(np.argmax(support.log_weights + noise))])
