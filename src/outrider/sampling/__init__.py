"""How a token is drawn from logits: warping, position-keyed noise, and the sampler over both."""

from outrider.sampling.noise import gumbel, noise_key, uniforms
from outrider.sampling.sampler import TokenSampler
from outrider.sampling.validate import validate
from outrider.sampling.warp import Support, dense_probs, warp

__all__ = [
    "Support",
    "TokenSampler",
    "dense_probs",
    "gumbel",
    "noise_key",
    "uniforms",
    "validate",
    "warp",
]
