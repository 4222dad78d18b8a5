"""What int8 and int4 layers compute, said in exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from outrider.engine import Chunk
from outrider.engine.attention import attend
from outrider.engine.decoder import TorchDecoder
from outrider.engine.fourbit import FourBit
from outrider.engine.quantize import round_int8
from outrider.engine.weights import Affine, Weight, layer_over, open_tensors

GROUP = 32


def rounded(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 rows [N, in] as whole numbers [N, groups, 32] and their scales [N, groups]."""
    groups = np.pad(rows, ((0, 0), (0, -rows.shape[1] % GROUP))).reshape(len(rows), -1, GROUP)
    peaks = np.abs(groups).max(axis=-1)
    inverse = np.divide(np.float32(127), peaks, out=np.zeros_like(peaks), where=peaks > 0)
    codes = np.rint(groups * inverse[..., None])
    return codes.astype(np.int64), (peaks / np.float32(127)).astype(np.float64)


def held(weight: Weight) -> Tensor:
    """What the kernels hold of a weight, in float64."""
    if isinstance(weight, FourBit):
        return weight.floats().double()
    codes, scale = round_int8(weight)
    return codes.double() * scale.double()[:, None]


class RoundedLinear:
    """A layer of the float decoder that rounds as the kernels do, and is exact otherwise."""

    def __init__(self, affine: Affine) -> None:
        self._weight = held(affine.weight)
        self._bias = 0.0 if affine.bias is None else affine.bias.double()

    def __call__(self, rows: Tensor) -> Tensor:
        codes, scales = rounded(rows.numpy())
        near = (codes * scales[..., None]).reshape(len(rows), -1)[:, : rows.shape[1]]
        return (torch.from_numpy(near) @ self._weight.T + self._bias).float()


def rounded_logits(folder: Path, ids: Sequence[int], num_layers: int | None = None) -> Tensor:
    """Logits after each token, [N, V], of the float decoder with all that the kernels round."""
    decoder = rounding_decoder(folder)
    if num_layers is not None:
        decoder = decoder.truncated(num_layers)
    cache = decoder.new_cache(num_slots=1, max_length=len(ids))
    with patch("outrider.engine.decoder.attend", _attend_to_halves):
        return decoder.forward([Chunk(cache.allocate(), ids, len(ids))], cache)[0]


def _attend_to_halves(queries: Tensor, keys: Tensor, values: Tensor, *rest: Any) -> Tensor:
    return attend(queries, keys.half().float(), values.half().float(), *rest)


def rounding_decoder(folder: Path) -> TorchDecoder:
    """The model in `folder` with the rounding of int8 or int4, but keys and values in float32."""
    with open_tensors(folder, dtype=torch.float32, device=torch.device("cpu")) as tensors:
        embedding = tensors.embedding()
        head = tensors.head(embedding)
        return TorchDecoder(
            tensors.config,
            embedding=held(_halved(embedding)).float(),
            layers=[layer_over(layer, RoundedLinear) for layer in tensors.layers()],
            norm=tensors.norm(),
            head=RoundedLinear(Affine(_halved(head), None)),
        )


def _halved(weight: Weight) -> Weight:
    return weight if isinstance(weight, FourBit) else weight.half()
