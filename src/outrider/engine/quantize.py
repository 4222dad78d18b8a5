"""Loading a model with its weights in 8 bits, or in 4 where the checkpoint has them so."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from outrider.engine.fourbit import FourBit
from outrider.engine.kernels import PackedLinear, Threads, WeightMemory, kernels
from outrider.engine.quantized import QuantizedDecoder, QuantizedLayer, check_runs
from outrider.engine.weights import Affine, LayerTensors, ModelTensors, open_tensors

__all__ = ["load_quantized", "round_int8"]

_LANES: Final = 8  # outputs of the gate that lie beside those of up
_BLOCK: Final = 1 << 18  # weights rounded at once: what the caches hold


def load_quantized(folder: Path, *, threads: Threads) -> QuantizedDecoder:
    """Load the model in `folder`. Raises as `weights.open_tensors`, and as `check_runs`."""
    memory = WeightMemory()
    with open_tensors(folder, dtype=torch.float16, device=torch.device("cpu")) as halves:
        check_runs(halves.config)
        head, embedding = _ends(halves, memory)
    with open_tensors(folder, dtype=torch.float32, device=torch.device("cpu")) as tensors:
        decoder = QuantizedDecoder(
            tensors.config,
            embedding=embedding,
            layers=[_layer(layer, memory) for layer in tensors.layers()],
            norm=tensors.norm(),
            head=head,
            threads=threads,
        )
    # What the weights passed through would else stay with this process, a tenth of its memory.
    kernels().lib.od_trim()
    return decoder


def round_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [out, in] as int8 and the scale of each output, [out]."""
    codes = torch.empty(weight.shape, dtype=torch.int8)
    scale = torch.empty(weight.shape[0])
    step = max(1, _BLOCK // weight.shape[1])
    for start in range(0, weight.shape[0], step):
        rows = weight[start : start + step].float()
        peaks = torch.maximum(rows.amax(dim=1), -rows.amin(dim=1))
        scale[start : start + step] = peaks / 127
        inverse = torch.where(peaks > 0, 127 / peaks, 0)
        codes[start : start + step] = (rows * inverse.unsqueeze(1)).round_()
    return codes, scale


def _ends(tensors: ModelTensors, memory: WeightMemory) -> tuple[PackedLinear, PackedLinear]:
    """Head and embedding, one and the same where the model has them so."""
    embedding = tensors.embedding()
    head = tensors.head(embedding)
    packed = _packed(Affine(head, None), memory)
    return packed, packed if head is embedding else _packed(Affine(embedding, None), memory)


def _layer(layer: LayerTensors, memory: WeightMemory) -> QuantizedLayer:
    return QuantizedLayer(
        attention_norm=layer.attention_norm,
        qkv=_packed(layer.qkv, memory),
        output=_packed(layer.output, memory),
        mlp_norm=layer.mlp_norm,
        gate_up=_packed(layer.gate_up, memory, _alternating(layer.gate_up.weight.shape[0])),
        down=_packed(layer.down, memory),
        qk_norm=layer.qk_norm,
        attention_out_norm=layer.attention_out_norm,
        mlp_out_norm=layer.mlp_out_norm,
    )


def _alternating(outputs: int) -> Tensor:
    """8 outputs of the gate, 8 of up, and so on."""
    return torch.arange(outputs).view(2, -1, _LANES).transpose(0, 1).reshape(-1)


def _packed(affine: Affine, memory: WeightMemory, order: Tensor | None = None) -> PackedLinear:
    if isinstance(affine.weight, FourBit):
        return PackedLinear.int4(affine.weight, affine.bias, order, memory=memory)
    return PackedLinear.int8(*round_int8(affine.weight), affine.bias, order, memory=memory)
