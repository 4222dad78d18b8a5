"""How a token is drawn from logits: processors, warping, position-keyed noise, the sampler."""

from outrider.sampling.history import History, TokenMask
from outrider.sampling.noise import gumbel, noise_key, uniforms
from outrider.sampling.processors import Processors
from outrider.sampling.sampler import Sampler, SamplerFactory, TokenSampler
from outrider.sampling.validate import MAX_LOGIT_BIAS, validate
from outrider.sampling.warp import Support, warp

__all__ = [
    "MAX_LOGIT_BIAS",
    "History",
    "Processors",
    "Sampler",
    "SamplerFactory",
    "Support",
    "TokenMask",
    "TokenSampler",
    "gumbel",
    "noise_key",
    "uniforms",
    "validate",
    "warp",
]
