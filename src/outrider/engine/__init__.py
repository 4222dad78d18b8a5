"""The decoder that target and draft models run on, and the thread that batches its steps.

`load_decoder` gives a `Decoder`; `open_lane` puts it on an `EngineThread`, where `Job`s of many
sequences share forward passes. Below that, `Decoder.forward` takes one `Chunk` of new tokens per
sequence and returns logits.
"""

from outrider.engine.architecture import ModelConfig, read_config
from outrider.engine.base import Decoder
from outrider.engine.batch import Chunk
from outrider.engine.cache import KVCache
from outrider.engine.decoder import TorchDecoder
from outrider.engine.gguf import convert_gguf
from outrider.engine.gguf_header import read_gguf_header
from outrider.engine.load import load_decoder, open_lane
from outrider.engine.scheduler import Feed, Job, Lane, Opening, StepInfo
from outrider.engine.thread import EngineThread
from outrider.engine.weights import load_model

__all__ = [
    "Chunk",
    "Decoder",
    "EngineThread",
    "Feed",
    "Job",
    "KVCache",
    "Lane",
    "ModelConfig",
    "Opening",
    "StepInfo",
    "TorchDecoder",
    "convert_gguf",
    "load_decoder",
    "load_model",
    "open_lane",
    "read_config",
    "read_gguf_header",
]
